"""The same with streaming: text as it comes, then the bill from the last chunk's report.

Start a gateway first (`make serve`). TIDEGATE_URL and TIDEGATE_DEV_KEY say where it is, if not here.
"""

import json
import os
from pathlib import Path

from openai import OpenAI

HERE = Path(__file__).parent
url = os.environ.get("TIDEGATE_URL", "http://127.0.0.1:8080")
key = os.environ.get("TIDEGATE_DEV_KEY") or Path(".tidegate/dev.key").read_text().strip()
request = json.loads((HERE / "rag_zh.json").read_text(encoding="utf-8"))

client = OpenAI(base_url=f"{url}/v1", api_key=key)
stream = client.chat.completions.create(
    model=request["model"],
    messages=request["messages"],
    max_tokens=48,
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"documents": request["documents"], "budget": request["budget"]},
)
report = None
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    report = getattr(chunk, "budget_report", None) or report

used = report["resources"]
print(f"\n{used['prompt_tokens']} prompt tokens, {used['cached_tokens']} of them cached")
print(f"TTFT {used['ttft_ms']:.0f} ms, {used['output_tokens']} tokens in {used['total_ms']:.0f} ms")
