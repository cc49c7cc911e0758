"""The commands of ``mvpformer``, one module each with ``main(arguments)``."""
