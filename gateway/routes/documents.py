"""`GET /v1/schemas/…` and `/schema/openapi.json`: generated from the types that the code uses."""

from typing import Any

import msgspec
from litestar import get
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from gateway.routes.access import AnyRequest
from gateway.routes.admin import FlushIn
from gateway.schemas import REPORT_VERSION, BudgetReport, ChatRequest
from policies.json_schema import DIALECT, json_schema

REQUEST_BODIES: dict[str, type] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/budget/plan": ChatRequest,
    "/admin/cache/flush": FlushIn,
}


@get("/v1/schemas/budget-report.json", operation_id="budget_report_schema")
async def budget_report_schema() -> dict[str, Any]:
    """JSON Schema of the budget report."""
    title = f"Tidegate budget report, version {REPORT_VERSION}"
    return {"$schema": DIALECT, "title": title, **msgspec.json.schema(BudgetReport)}


@get("/v1/schemas/policy.json", operation_id="policy_schema")
async def policy_schema() -> dict[str, Any]:
    """JSON Schema of a policy set, as it is written in YAML."""
    return json_schema()


class OpenAPIJson(JsonRenderPlugin):
    """Litestar's document, with the bodies that our routes decode themselves."""

    def render(self, request: AnyRequest, openapi_schema: dict[str, Any]) -> bytes:
        """The document as JSON."""
        types = set(REQUEST_BODIES.values())
        _, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
        schemas = {**components, **openapi_schema["components"]["schemas"]}
        document = {**openapi_schema, "components": {**openapi_schema["components"], "schemas": schemas}}
        for path, body in REQUEST_BODIES.items():
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
            document["paths"][path]["post"]["requestBody"] = {"content": content, "required": body is ChatRequest}
        return msgspec.json.encode(document)


def openapi_config(version: str) -> OpenAPIConfig:
    """Served at `/schema/openapi.json`."""
    bearer = SecurityScheme(type="http", scheme="bearer", description="An API key of the policy set")
    return OpenAPIConfig(
        title="Tidegate",
        version=version,
        use_handler_docstrings=True,
        render_plugins=[OpenAPIJson()],
        components=Components(security_schemes={"key": bearer}),
        security=[{"key": []}],
    )
