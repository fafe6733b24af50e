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

from ..base import Base
from .keys import Keys
from .reader import Reader
from .shelf import read_shelf
from .stream import Stream
from .text import settled
from .words import FILTERS

TEMPLATES = f"{os.path.dirname(os.path.abspath(__file__))}/templates"
MOST_NOTES = 200


class Office:
    """One page of one base."""

    def __init__(self, base: Base, keys: Keys, *, here: str) -> None:
        self.base = base
        self.keys = keys
        self.here = here  # where jobs run that name no folder
        self.reader = Reader(base)
        self.stream = Stream(self.reader)
        self.shelf = read_shelf()
        self._notes: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._templates = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS, plain=settled, card=self.card)
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
        return f"/static/{name}?v={self.shelf[name].digest}"


def _office(request: Request) -> Office:
    office = request.app.state.office
    assert isinstance(office, Office)
    return office


In = Annotated[Office, Depends(_office)]
