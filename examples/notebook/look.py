"""Shows what a notebook gave, as text, and checks a chart against the schema of Vega-Lite."""

import sys
from pathlib import Path

import altair
import nbformat

_, given, drawn = sys.argv
notebook = nbformat.read(given, 4)
nbformat.validate(notebook)
for cell in notebook.cells:
    for output in cell.get("outputs", ()):
        print(output.text.rstrip() if output.output_type == "stream" else output.data["text/plain"])
chart = altair.Chart.from_json(Path(drawn).read_text()).to_dict()
rows = sum(map(len, chart["datasets"].values()))
axis, line = (chart["encoding"][name] for name in ("y", "color"))
print(f"a {chart['mark']['type']} of {rows} rows: {axis['title']} by {line['field']}")
