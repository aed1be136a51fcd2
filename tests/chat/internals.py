"""What the tests use of `sharpen.chat` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.chat.messages import (
        Message,
        ParsedResponse,
        TextPart,
        ToolCall,
        ToolResult,
        openai_message,
        read_messages,
        request_attributes,
        response_attributes,
        results_apart,
    )
    from sharpen.chat.streams import EventStream, ResponseReader, parse_request, parse_response, parse_stream
    from sharpen.chat.wire import decode, mended

__getattr__ = imports_on_use(__file__)
