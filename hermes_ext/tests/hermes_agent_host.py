"""Talks with the real Hermes Agent and a fake model over HTTP; runs in the host's environment.

    python hermes_agent_host.py plugin|provider FOLDER < conversation.json > result.json

FOLDER is the host's home, with the plugin in plugins/hermes-lite. The conversation is a list of
turns, each {"say": text, "tool": [name, arguments] or null, "platform": where it comes from}: the
fake model calls the tool once, then answers. The result holds, for each turn, what the model was
given and what the tool returned; and what the host's own loader says about the plugin.
"""
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODE, HOME = sys.argv[1], Path(sys.argv[2])
os.environ.update(HERMES_HOME=str(HOME), HOME=str(HOME))      # before any import of the host


class Model(BaseHTTPRequestHandler):
    """An OpenAI-compatible chat model that says one sentence, or calls the tool of the turn."""
    protocol_version = "HTTP/1.1"
    requests: list = []
    tool = None

    def log_message(self, *words):
        pass

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "fake", "object": "model",
                                                 "context_length": 200_000}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        is_chat = self.path.endswith("chat/completions") and body.get("messages")
        if not is_chat or not body.get("tools"):   # a probe, or a job of the host's own
            return self.stream(body, {"content": "fine"}, "stop")
        Model.requests.append(body)
        if Model.tool and body["messages"][-1]["role"] == "user":
            name, arguments = Model.tool
            call = {"index": 0, "id": f"call_{len(Model.requests)}", "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)}}
            return self.stream(body, {"tool_calls": [call]}, "tool_calls")
        return self.stream(body, {"content": "a fake answer"}, "stop")

    def stream(self, body, message, reason):
        base = {"id": "x", "created": 1, "model": "fake"}
        message, usage = {"role": "assistant", **message}, {
            "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if not body.get("stream"):
            return self.answer({**base, "object": "chat.completion", "usage": usage, "choices": [
                {"index": 0, "message": message, "finish_reason": reason}]})
        base["object"] = "chat.completion.chunk"
        chunks = [{**base, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
                  {**base, "usage": usage, "choices": [
                      {"index": 0, "delta": {}, "finish_reason": reason}]}]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for chunk in [*map(json.dumps, chunks), "[DONE]"]:
            self.wfile.write(f"data: {chunk}\n\n".encode())
        self.close_connection = True

    def answer(self, result):
        data = json.dumps(result).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def text_of(content):
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    plugins = "plugins:\n  enabled: [hermes-lite]\n" if MODE == "plugin" else ""
    provider = "memory:\n  provider: hermes-lite\n" if MODE == "provider" else ""
    (HOME / "config.yaml").write_text(
        f"model:\n  provider: custom\n  default: fake\n  base_url: {url}\n  api_key: none\n"
        f"{plugins}{provider}")
    from hermes_cli.plugins import discover_plugins, get_plugin_manager
    from plugins.memory import discover_memory_providers
    discover_plugins()
    loaded = [plugin for plugin in get_plugin_manager().list_plugins()
              if plugin["name"] == "hermes-lite"]
    result = {"plugins": [{key: plugin[key] for key in ("enabled", "error")}
                          for plugin in loaded],
              "providers": [row[0] for row in discover_memory_providers() if row[2]],
              "turns": []}
    from hermes_state import SessionDB
    from run_agent import AIAgent
    agents, histories, database = {}, {}, SessionDB()
    for turn in json.load(sys.stdin):
        platform = turn.get("platform") or "cli"
        if platform not in agents:
            agents[platform] = AIAgent(
                base_url=url, api_key="none", provider="custom", model="fake", quiet_mode=True,
                platform=platform, session_db=database, skip_context_files=True,
                skip_memory=platform in ("subagent", "cron"),
                enabled_toolsets=["memory", "hermes_lite"])
        agent, first = agents[platform], len(Model.requests)
        Model.tool = turn.get("tool")
        done = agent.run_conversation(turn["say"], conversation_history=histories.get(platform))
        histories[platform] = done["messages"]
        seen = Model.requests[first:]
        result["turns"].append({
            "said": turn["say"], "answer": done["final_response"],
            "system": text_of(seen[0]["messages"][0]["content"]),
            "given": next(text_of(message["content"]) for message in reversed(
                seen[0]["messages"]) if message["role"] == "user"),
            "tools": sorted(tool["function"]["name"] for tool in seen[0]["tools"]),
            "results": [text_of(message["content"]) for message in seen[-1]["messages"]
                        if message["role"] == "tool"][-1:]})
    for agent in agents.values():
        manager = getattr(agent, "_memory_manager", None)
        if manager is not None:
            manager.flush_pending(30)
        agent.shutdown_memory_provider([])
    print(json.dumps(result, ensure_ascii=False), file=OUT, flush=True)
    os._exit(0)                                    # threads of the host may still wait


OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)                                      # what the host prints is no result
main()
