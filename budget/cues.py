"""What kind of answer a question asks for, and whether a sentence holds that kind. English and Chinese."""

import re
from collections.abc import Callable

_MEASURE = "个個位年月日岁歲名人次种種座家条條项項天里裡层層场場所米公多分倍成只隻部本"

_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|half|dozen"
    rf"|hundred|thousand|million|billion|percent)s?\b|[一二三四五六七八九十百千万萬亿億两兩半几幾][{_MEASURE}]",
    re.IGNORECASE,
)
_DATE = re.compile(
    r"\b(?:1\d{3}|20\d{2})s?\b|\d\s*[年月日号號]|[〇零一二三四五六七八九十]{1,8}[年月日]|世[纪紀]|\d(?:st|nd|rd|th)\b|\d:\d\d"
    r"|\b(?:jan|febr)uary\b|\b(?:march|april|may|june|july|august|(?:septem|octo|novem|decem)ber)\b"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b\d+ (?:minute|hour|day|week|month|year|decade)s?\b"
    r"|\d\s*(?:分钟|分鐘|小时|小時|天|周|週|个月|個月)|[初中晚末]期|[春夏秋冬]季",
    re.IGNORECASE,
)
_NAME = re.compile(
    r"[A-Z][\w'’.-]{1,40} (?:(?:of|de|van|von|der|la|bin) ){0,3}[A-Z]\w|(?<=[a-z,] )[A-Z][a-z]|[A-Z]{2}|[·・]"
)
_PLACE = re.compile(
    r"\b(?:in|at|near|from|to|of|on|off) (?:the )?[A-Z]\w|位[于於]|[东東西南北]部"
    r"|[省市县縣区區州国國镇鎮乡鄉村岛島洲港湾灣路街山河湖海府郡城馆館院]"
)

_ASKS_NUMBER = re.compile(
    r"\bhow (?:many|much|old|far|tall|big|large|high|deep|heavy|fast)\b"
    r"|\b(?:what|which) (?:number|percent|percentage|age|amount|price)\b|\b(?:number|percentage|amount|population) of\b"
    rf"|多少|[几幾][{_MEASURE}]|多[大高远遠重深宽寬]|百分之[几幾]",
    re.IGNORECASE,
)
_ASKS_DATE = re.compile(
    r"\bwhen\b|\bhow (?:long|often|soon)\b|\b(?:what|which) (?:year|date|day|month|century|decade|time|season)\b"
    r"|何[时時年月日]|[什甚][么麼](?:时候|時候|时间|時間)|[哪那]一?[年天月日]|哪[个個](?:世[纪紀]|年代|月)|[几幾][号號點点时時]"
    r"|多[久长長]|日期|年份",
    re.IGNORECASE,
)
_ASKS_NAME = re.compile(r"\bwho(?:m|se)?\b", re.IGNORECASE)
_ASKS_PLACE = re.compile(
    r"\bwhere\b|\b(?:what|which) (?:city|country|state|place|town|county)\b|哪[里裡兒儿]|何[处處地]|位[于於]哪"
    r"|[哪那]一?[个個座]?[国國省市县縣城地]|[什甚][么麼]地[方区區]",
    re.IGNORECASE,
)

_KINDS = ((_ASKS_DATE, _DATE), (_ASKS_NUMBER, _NUMBER), (_ASKS_NAME, _NAME), (_ASKS_PLACE, _PLACE))


def answer_cue(question: str) -> Callable[[str], bool] | None:
    """A test for sentences that hold the kind of thing asked for; None where the question does not say."""
    for asks, holds in _KINDS:
        if asks.search(question):
            return lambda sentence: holds.search(sentence) is not None
    return None
