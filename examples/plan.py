"""What would be sent, without sending it: the planned messages and the tokens that planning saves.

Start a gateway first (`make serve`). TIDEGATE_URL and TIDEGATE_DEV_KEY say where it is, if not here.
"""

import os
from pathlib import Path

import httpx

HERE = Path(__file__).parent
url = os.environ.get("TIDEGATE_URL", "http://127.0.0.1:8080")
key = os.environ.get("TIDEGATE_DEV_KEY") or Path(".tidegate/dev.key").read_text().strip()

response = httpx.post(
    f"{url}/v1/budget/plan",
    content=(HERE / "rag_zh.json").read_bytes(),
    headers={"authorization": f"Bearer {key}"},
    timeout=30,
)
response.raise_for_status()
plan = response.json()
for message in plan["messages"]:
    print(f"[{message['role']}] {message['content']}")

context = plan["budget_report"]["context"]
print(f"{context['tokens_before']} tokens came in, {context['tokens_after']} would be sent")
