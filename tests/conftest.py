"""For all tests: thread counts as the gateway sets them, before anything imports torch."""

from gateway.threads import set_thread_counts

set_thread_counts(None)
