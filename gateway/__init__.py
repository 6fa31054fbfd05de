"""The HTTP gateway: auth, admission, planning, the engine, and the report on every answer."""
