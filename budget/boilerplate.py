"""What a page puts around its text, and where a text was cut: left out of comparisons, never out of a passage."""

import re

from budget.text import is_cjk

_MAX_LINES = 4
_CUES = re.compile(
    r"cookies?\b|copyright|©|all rights reserved|terms of (?:use|service)|privacy|skip to|last (?:updated|modified)"
    r"|reading time|min(?:ute)?s? read|\bshare (?:this|on|via)|\bprint\b|subscribe|newsletter|sign (?:in|up)"
    r"|log ?in\b|read more|click here|advertisement|follow us|back to top|table of contents"
    r"|(?:previous|next) (?:article|page|post)|related (?:articles|posts)|posted (?:on|by)|page \d+ (?:of|/) \d+"
    r"|更新时间|更新時間|发布时间|發佈時間|阅读约|閱讀約|首页|首頁|返回|版权|版權|转载|轉載|使用条款|使用條款|隐私|隱私"
    r"|分享到|打印|列印|订阅|訂閱|登录|登入|注册|註冊|广告|廣告|关注我们|關注我們|点击|點擊|上一[篇页頁]|下一[篇页頁]"
    r"|相关阅读|相關閱讀|责任编辑|責任編輯|来源[:：]|來源[:：]|第\s*\d+\s*[页頁]",
    re.IGNORECASE,
)
_TRAIL = re.compile(r"[^\n>»›/|·]{1,30}(?:\s[>»›/|·]\s[^\n>»›/|·]{1,30}){1,6}")
_ELLIPSIS_START = re.compile(r"\s*(?:\.{3,}|…+|\[…\]|\[\.{3}\])\s*")
_ELLIPSIS_END = re.compile(r"\s*(?:\.{3,}|…+|\[…\]|\[\.{3}\])\s*\Z")


def body(text: str) -> tuple[int, int]:
    """[start, end) of the text without the lines of a page around it, and without ellipses that mark a cut.

    All of it where nothing else would be left. A line counts as the page's if it is short and says what pages say:
    cookies, copyright, where one is, when it was updated. English and Chinese.
    """
    start, end = _without_page(text)
    if cut := _ELLIPSIS_START.match(text, start, end):
        start = cut.end()
    tail = text[max(start, end - 12) : end]
    if cut := _ELLIPSIS_END.search(tail):
        end -= len(tail) - cut.start()
    return (start, end) if text[start:end].strip() else (0, len(text))


def _without_page(text: str) -> tuple[int, int]:
    start, end = 0, len(text)
    for _ in range(_MAX_LINES):
        stop = text.find("\n", start, end)
        if stop < 0 or not _is_page_line(text[start:stop]):
            break
        start = stop + 1
    for _ in range(_MAX_LINES):
        begin = text.rfind("\n", start, end)
        if begin < 0 or not _is_page_line(text[begin + 1 : end]):
            break
        end = begin
    return start, end


def _is_page_line(line: str) -> bool:
    """Blank, or short with one of the cues, or a trail such as `Home > Docs > Setup`."""
    line = line.strip()
    if not line:
        return True
    if len(line) > (50 if is_cjk(line) else 120):
        return False
    return _CUES.search(line) is not None or _TRAIL.fullmatch(line) is not None
