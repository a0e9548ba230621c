"""Hooks of MkDocs: add pages that are not in docs/, and adapt the links of all pages.

On GitHub, a link leads to a file of the project. On the site, it leads to the page made from this
file: README.md is the first page, and a file that is no page is shown as a block of code.
"""

import re
from pathlib import Path
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

# Pages of the root folder -> their names on the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
# The search is for pages, not for code.
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml"}

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root folder's pages, the API reference, and the source files that pages link to."""
    names = {page for page in ROOT_PAGES if (ROOT / page).is_file()}
    names |= {f"docs/{file.src_uri}" for file in files.documentation_pages()}
    for name in sorted(names & set(ROOT_PAGES)):
        text = (ROOT / name).read_text()
        files.append(File.generated(config, ROOT_PAGES[name], content=text))
    for module in reference_modules(config.nav):
        text = f"# {module}\n\n::: {module}\n"
        files.append(File.generated(config, f"reference/{module}.md", content=text))
    for source in sorted({file for name in names for file in source_files(name)}):
        language = LANGUAGES.get(Path(source).suffix, "text")
        text = f"{NOT_SEARCHED}# {source}\n\n~~~~{language}\n{(ROOT / source).read_text()}~~~~\n"
        files.append(File.generated(config, f"source/{source}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with its links adapted to the site."""
    page_name = page.file.src_uri
    if page_name.startswith(("reference/", "source/")):
        return markdown
    by_site_name = {site: name for name, site in ROOT_PAGES.items()}
    name = by_site_name.get(page_name, f"docs/{page_name}")

    def adapt(link: re.Match[str]) -> str:
        path, hash_sign, anchor = link[2].partition("#")
        target = project_path(name, path)
        if target is None:
            return link[0]
        on_site = relpath(site_name(target), Path(page_name).parent.as_posix())
        return f"{link[1]}{on_site}{hash_sign}{anchor}{link[3]}"

    adapted, end = [], 0
    for code in [*_CODE.finditer(markdown), None]:
        adapted.append(_LINK.sub(adapt, markdown[end : code.start() if code else None]))
        if code:
            adapted.append(code[0])
            end = code.end()
    return "".join(adapted)


def reference_modules(nav: object) -> list[str]:
    """Return the modules with a page in the part `reference/` of the navigation."""
    if isinstance(nav, dict):
        return [module for part in nav.values() for module in reference_modules(part)]
    if isinstance(nav, list):
        return [module for part in nav for module in reference_modules(part)]
    page = re.fullmatch(r"reference/([\w.]+)\.md", str(nav))
    return [page[1]] if page else []


def project_path(page: str, link: str) -> str | None:
    """Return the file of the project that a link of a page leads to, or None for other links."""
    if not link or ":" in link or link.startswith("/"):
        return None
    path = normpath((Path(page).parent / link).as_posix())
    return path if (ROOT / path).is_file() else None


def site_name(path: str) -> str:
    """Return the name on the site of a file of the project."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}.md"


def source_files(page: str) -> set[str]:
    """Return the files that a page links to and that are no pages."""
    text = _CODE.sub("", (ROOT / page).read_text())
    paths = {project_path(page, link[2].partition("#")[0]) for link in _LINK.finditer(text)}
    return {path for path in paths if path and site_name(path).startswith("source/")}
