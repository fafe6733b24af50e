"""The pieces of an SVG picture."""

from __future__ import annotations

from xml.etree import ElementTree

from postroom.text.svg import svg_document, text_at


def test_text_is_escaped_and_the_document_is_well_formed() -> None:
    document = svg_document(30, 20, [text_at(1, 2, '<a> & "b"', anchor="end")])
    picture = ElementTree.fromstring(document)
    assert picture.attrib["viewBox"] == "0 0 30 20"
    assert [text.text for text in picture if text.tag.endswith("text")] == ['<a> & "b"']
