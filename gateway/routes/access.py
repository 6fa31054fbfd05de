"""What every route needs: the services, and who is asking."""

from typing import Any

from litestar import Request

from gateway.auth import Caller, authenticate
from gateway.services import Services

AnyRequest = Request[Any, Any, Any]
STATE_KEY = "services"


def services_of(request: AnyRequest) -> Services:
    """The application's services."""
    services: Services = request.app.state[STATE_KEY]
    return services


def caller_of(request: AnyRequest) -> Caller:
    """The key's owner.

    Raises:
        InvalidApiKey: there is none.
    """
    services = services_of(request)
    return authenticate(request.headers, services.policies.current(), services.clock())


def admin_of(request: AnyRequest) -> Caller:
    """The owner of an admin key.

    Raises:
        InvalidApiKey, NotAllowed: it is none.
    """
    caller = caller_of(request)
    caller.check_admin()
    return caller
