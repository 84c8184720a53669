// Lays out Markdown of strangers: its tokens become elements of a few kinds, and all of its text stays text.
// HTML in it is shown as it was written, images are named and not fetched, and only addresses of the web are links.

import { useEffect, useState } from "/vendor/hooks.js";
import { html } from "/parts.js";
import { link, shown } from "/text.js";

const MOST = 200_000;
const DEEP = 12;
const TABLE = 500;

export function Readme({ text }) {
  const [lexer, load] = useState(null);
  useEffect(() => {
    let here = true;
    import("/vendor/marked.js").then(({ Lexer }) => here && load(() => Lexer));
    return () => (here = false);
  }, []);
  const cut = text.slice(0, MOST);
  if (!lexer) return html`<pre class="readme" tabindex="0">${shown(cut, MOST)}</pre>`;
  let tokens;
  try {
    tokens = lexer.lex(cut, { gfm: true });
  } catch {
    return html`<pre class="readme" tabindex="0">${shown(cut, MOST)}</pre>`;
  }
  return html`<div class="readme">${blocks(tokens, 0)}${text.length > MOST && html`<p class="quiet">The rest is left out.</p>`}</div>`;
}

const raw = (token) => html`<bdi>${shown(token.raw ?? token.text ?? "", MOST)}</bdi>`;
const plain = (text) => shown(unescaped(text), MOST);
const NAMED = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };
const unescaped = (text) => String(text).replace(/&(amp|lt|gt|quot|#39);/g, (one) => NAMED[one]);

function blocks(tokens, depth) {
  if (depth > DEEP) return tokens.map(raw);
  return tokens.map((token) => block(token, depth + 1));
}

function block(token, depth) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      // The headings of the page end with the second: those of a stranger stand below.
      return token.depth < 3 ? html`<h3>${inline(token.tokens, depth)}</h3>` : html`<h4>${inline(token.tokens, depth)}</h4>`;
    case "paragraph":
      return html`<p>${inline(token.tokens, depth)}</p>`;
    case "text":
      return token.tokens ? inline(token.tokens, depth) : plain(token.text);
    case "code":
      return html`<pre tabindex="0">${shown(token.text, MOST)}</pre>`;
    case "blockquote":
      return html`<blockquote>${blocks(token.tokens, depth)}</blockquote>`;
    case "hr":
      return html`<hr />`;
    case "list": {
      const items = token.items.map((item) => html`<li>${item.task ? (item.checked ? "☑ " : "☐ ") : ""}${blocks(item.tokens.filter((one) => one.type !== "checkbox"), depth)}</li>`);
      return token.ordered ? html`<ol start=${Number(token.start) || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
    }
    case "table":
      return html`<div class="scroll" role="group" aria-label="Table of the readme" tabindex="0"><table>
        <thead><tr>${token.header.map((one) => html`<th scope="col">${inline(one.tokens, depth)}</th>`)}</tr></thead>
        <tbody>${token.rows.slice(0, TABLE).map((row) => html`<tr>${row.map((one) => html`<td>${inline(one.tokens, depth)}</td>`)}</tr>`)}</tbody>
      </table></div>`;
    default:
      return html`<p>${raw(token)}</p>`;
  }
}

function inline(tokens = [], depth = 0) {
  if (depth > DEEP) return tokens.map(raw);
  return tokens.map((token) => {
    const inner = () => inline(token.tokens, depth + 1);
    switch (token.type) {
      case "text":
        return token.tokens ? inner() : plain(token.text);
      case "escape":
        return plain(token.text);
      case "strong":
        return html`<strong>${inner()}</strong>`;
      case "em":
        return html`<em>${inner()}</em>`;
      case "del":
        return html`<del>${inner()}</del>`;
      case "codespan":
        return html`<code>${shown(token.text, MOST)}</code>`;
      case "br":
        return html`<br />`;
      case "link": {
        const href = link(token.href);
        // Where it leads is shown: a name is only what a stranger says of it.
        return href ? html`<a href=${href} rel="noopener noreferrer nofollow" target="_blank">${inner()} <span class="quiet">(${shown(new URL(href).host, 100)})</span></a>` : html`<span>${inner()}</span>`;
      }
      case "image":
        return html`<span class="quiet">[image: ${plain(token.text)}]</span>`;
      default:
        return raw(token);
    }
  });
}
