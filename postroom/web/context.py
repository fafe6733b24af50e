"""What all pages share: the reader, the news, the templates, and notes to the next page."""

from __future__ import annotations

import os
import secrets
import time
from collections import OrderedDict
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..store.base import Base
from ..text.safe_text import final_text
from .access_token import AccessToken
from .assets import read_assets
from .format import FILTERS
from .live_updates import LiveUpdates
from .queue_reader import QueueReader

TEMPLATES = f"{os.path.dirname(os.path.abspath(__file__))}/templates"
MOST_NOTES = 200


class PageContext:
    """One page of one base."""

    def __init__(self, base: Base, keys: AccessToken, *, here: str) -> None:
        self.base = base
        self.keys = keys
        self.here = here  # where jobs run that name no folder
        self.reader = QueueReader(base)
        self.stream = LiveUpdates(self.reader)
        self.assets = read_assets()
        self._notes: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._templates = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS, plain=final_text, card=self.card)
        self._templates.globals.update(asset=self._asset, now=time.time)

    def leave_note(self, text: str, *, kind: str = "good") -> str:
        """Keep a sentence for the page that comes next; return what its address names it by."""
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
        text = self._templates.get_template(template).render(
            form_key=self.keys.form,
            note=note,
            path=request.url.path,
            base_name=os.path.basename(self.base.root),
            base_root=self.base.root,
            **values,
        )
        return HTMLResponse(text, status)

    def card(self, gpu: str) -> str:
        """What people call a card, where it is one that was seen."""
        return ", ".join(self.reader.card_names.get(uuid, uuid) for uuid in gpu.split(","))

    def close(self) -> None:
        """Look no more."""
        self.stream.close()
        self.reader.close()

    def _asset(self, name: str) -> str:
        return f"/static/{name}?v={self.assets[name].digest}"


def _office(request: Request) -> PageContext:
    context = request.app.state.context
    assert isinstance(context, PageContext)
    return context


In = Annotated[PageContext, Depends(_office)]
