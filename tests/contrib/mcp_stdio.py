"""A server of the Model Context Protocol on standard input and output: `python mcp_stdio.py LOG`. Each call of its
one tool is a line in the file LOG. It uses only the standard library, to start quickly.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "shop", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
        return {"tools": [{"name": "price", "description": "What an item costs.", "inputSchema": schema}]}
    if method == "tools/call":
        with open(sys.argv[1], "a") as log:
            log.write(f"{params['arguments']['item']}\n")
        return {"content": [{"type": "text", "text": "3 crowns"}], "isError": False}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        if request["method"] in ("initialize", "tools/list", "tools/call", "ping"):
            reply["result"] = answer(request["method"], request.get("params") or {})
        else:
            reply["error"] = {"code": -32601, "message": "no such method"}
        print(json.dumps(reply), flush=True)
