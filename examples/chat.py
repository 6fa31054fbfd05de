"""One RAG request with the official openai client; the answer, and what became of each passage.

Start a gateway first (`make serve`). TIDEGATE_URL and TIDEGATE_DEV_KEY say where it is, if not here.
"""

import json
import os
from pathlib import Path

from openai import OpenAI

HERE = Path(__file__).parent
url = os.environ.get("TIDEGATE_URL", "http://127.0.0.1:8080")
key = os.environ.get("TIDEGATE_DEV_KEY") or Path(".tidegate/dev.key").read_text().strip()
request = json.loads((HERE / "rag_en.json").read_text(encoding="utf-8"))

client = OpenAI(base_url=f"{url}/v1", api_key=key)
answer = client.chat.completions.create(
    model=request["model"],
    messages=request["messages"],
    max_tokens=48,
    extra_body={"documents": request["documents"], "budget": request["budget"]},
)
print(answer.choices[0].message.content)

for passage in answer.budget_report["context"]["documents"]:
    print(f"{passage['fate']:8} {passage['reason'] or '':16} {passage['tokens_after']:4} tokens  {passage['id']}")
