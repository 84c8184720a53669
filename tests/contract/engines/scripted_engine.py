"""A real engine process without Spark: run by path, told how to misbehave by the first word of the query."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from chain.model.events import OffsetInterval
from engines.contract import EngineIdentity, InvalidQuery, RawQuerySuccess, SessionState, Success, ValidateResponse
from engines.service import serve


class Handler:
    """``lazy``: it starts what validation and transforms need when it is asked to; ``broken``: that fails."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.state = "stopped" if mode in ("lazy", "broken") else "ready"

    def session(self, request: Any) -> SessionState:
        if not request.starts or self.state == "ready":
            return SessionState(state=self.state)
        print("odf-engine session starting", flush=True)
        self.state = "failed" if self.mode == "broken" else "ready"
        print(f"odf-engine session {self.state}", flush=True)
        return SessionState(state=self.state, message="no room for the heap" if self.state == "failed" else "")

    def identity(self) -> EngineIdentity:
        return EngineIdentity(name="scripted", version="1", digest="", sandbox="", platform="")

    def validate(self, request: Any) -> ValidateResponse:
        return ValidateResponse(ok=True)

    def transform(self, request: Any, control: Any) -> Any:
        query = request.transform.queries[0].query
        word, _, rest = query.partition(" ")
        match word:
            case "die":
                print("last words of a dying engine", file=sys.stderr, flush=True)
                os._exit(3)
            case "hoard":
                keep = [bytearray(64 << 20) for _ in range(64)]
                return InvalidQuery(message=f"kept {len(keep)}")
            case "read":
                try:
                    return InvalidQuery(message=Path(rest).read_text())
                except OSError as error:
                    return InvalidQuery(message=f"cannot: {error.strerror}")
            case "sleep":
                control.cancelled.wait(float(rest))
                return InvalidQuery(message="slept")
            case "work":
                while not control.cancelled.wait(0.02) and not Path(rest).exists():
                    pass
                return InvalidQuery(message="worked")
            case "fail":
                raise ValueError(rest)
            case "ignore":
                Path(rest).touch()
                threading.Event().wait()
            case "hang":
                time.sleep(float(rest))
        paths = [path for each in request.query_inputs for path in each.data_paths]
        Path(request.new_data_path).write_bytes(b"".join(Path(path).read_bytes() for path in paths))
        return Success(new_offset_interval=OffsetInterval(start=0, end=1))

    def ingest(self, request: Any, control: Any) -> Any:
        Path(request.new_data_path).write_bytes(self.state.encode())
        return Success(new_offset_interval=OffsetInterval(start=0, end=1))

    migrate = transform

    def derive_provenance(self, request: Any, control: Any) -> Any:
        return InvalidQuery(message="rows of this engine come from nowhere")

    def raw_query(self, request: Any, control: Any) -> Any:
        return RawQuerySuccess(num_records=0)


def main(listen: str, mode: str) -> None:
    if mode == "refuse":
        sys.exit("no Java here")
    if mode == "mute":
        time.sleep(60)
    handler = Handler(mode)
    server = serve(handler, listen)
    session = "\nodf-engine session stopped" if handler.state != "ready" else ""
    print(server.ready_line + session, flush=True)

    def lifeline() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=lifeline, daemon=True).start()
    server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:3])
