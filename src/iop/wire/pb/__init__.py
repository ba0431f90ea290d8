"""Generated from proto/iop/runtime.proto by ``make proto``. Only ``iop.wire.codec`` imports it."""
