"""The log of the package as it is before anybody asks for it."""

import logging


def forget_logging() -> None:
    """Undo what `setup_logging` did, so that tests do not see each other's log."""
    for name in ("sharpen", *(each for each in logging.Logger.manager.loggerDict if each.startswith("sharpen."))):
        logger = logging.getLogger(name)
        logger.setLevel(logging.NOTSET)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
