"""What all pages share: the queue reader, live updates, templates, and messages."""

from __future__ import annotations

import os
import secrets
import time
from collections import OrderedDict
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..queue.actions import ACTIONS
from ..store.base import Base, up_command
from ..text.safe_text import final_text
from .access_token import AccessToken, Right
from .assets import read_assets
from .format import FILTERS
from .live_updates import LiveUpdates
from .queue_reader import QueueReader
from .request_guard import RIGHT

TEMPLATES = f"{os.path.dirname(os.path.abspath(__file__))}/templates"
MOST_NOTES = 200


class AppContext:
    """The state of one running page server."""

    def __init__(self, base: Base, token: AccessToken, *, here: str) -> None:
        self.base = base
        self.token = token
        self.here = here  # the folder of jobs that name none
        self.queue = QueueReader(base)
        self.live_updates = LiveUpdates(self.queue)
        self.assets = read_assets()
        self._notes: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._templates = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS, plain=final_text, gpu_name=self.gpu_name)
        self._templates.globals.update(
            asset=self._asset, label=lambda verb: ACTIONS[verb].label, now=time.time
        )

    def leave_note(self, text: str, *, kind: str = "good") -> str:
        """Keep a message for the next page; return the key that the page's address carries."""
        name = secrets.token_hex(8)
        self._notes[name] = kind, text
        while len(self._notes) > MOST_NOTES:
            self._notes.popitem(last=False)
        return name

    def page(
        self, request: Request, template: str, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Fill in a template."""
        note = self._notes.pop(request.query_params.get("note", ""), None)
        may_act = request.scope.get(RIGHT) is not Right.LOOK
        text = self._templates.get_template(template).render(
            form_key=self.token.form_key if may_act else "",
            may_act=may_act,
            note=note,
            path=request.url.path,
            base_name=os.path.basename(self.base.root),
            base_root=self.base.root,
            up_command=up_command(self.base.root),
            **values,
        )
        return HTMLResponse(text, status)

    def gpu_name(self, gpu: str) -> str:
        """The GPU's number and name; its UUID when it was never seen."""
        return ", ".join(self.queue.card_names.get(uuid, uuid) for uuid in gpu.split(","))

    def close(self) -> None:
        """Stop reading."""
        self.live_updates.close()
        self.queue.close()

    def _asset(self, name: str) -> str:
        return f"/static/{name}?v={self.assets[name].digest}"


def _app_context(request: Request) -> AppContext:
    context = request.app.state.context
    assert isinstance(context, AppContext)
    return context


Context = Annotated[AppContext, Depends(_app_context)]
