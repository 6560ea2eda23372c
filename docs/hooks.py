"""For mkdocs: the pages are written for the repository, and these few things differ on the site.

Pictures that lie outside docs/ are taken along. A link to another file of the repository becomes
one to `repo_url`, or plain words while there is none. Lists need an empty line before them.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(\.\./([^)]+)\)")
LIST_AFTER_TEXT = re.compile(r"^((?![-|]|\s|\d+\.).+)\n(?=- |1\. )", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.docs_dir).parent
    for page in list(files.documentation_pages()):
        for picture, _, path in LINK.findall(page.content_string):
            if picture and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(root / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    parts = FENCE.split(markdown)  # code is every second one, and stays as it is
    return "".join(part if n % 2 else mend(part, config.repo_url) for n, part in enumerate(parts))


def mend(text: str, repository: str | None) -> str:
    """What a page has between its code blocks, as the site needs it."""
    text = LINK.sub(lambda found: _target(found, repository), text)
    return LIST_AFTER_TEXT.sub(r"\1\n\n", text)


def _target(found: re.Match[str], repository: str | None) -> str:
    picture, label, path = found.groups()
    if picture:
        return f"![{label}]({path})"
    if repository:
        return f"[{label}]({repository.rstrip('/')}/blob/main/{path})"
    return label if path in label else f"{label} (`{path}`)"
