"""What the tests use of `sharpen.process`: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.process import child as kit
    from sharpen.process.child import CommandProcess, ExitReport, Failure, OrphanRule, ProcessError
    from sharpen.process.python_process import (
        MESSAGE,
        READY,
        STOP,
        Channel,
        ChannelClosed,
        ChannelError,
        Job,
        Parent,
        PythonProcess,
        is_traced,
    )

__getattr__ = imports_on_use(__file__)
