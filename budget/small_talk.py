"""Small talk, English and Chinese: thanks, greetings, farewells, "that is all". What can go without loss.

Its phrases are taken out of a text, then filler. If a word is left, the text says something and is not small talk.
"""

import re

from budget.text import is_cjk, normalise

_LONGEST = 300
"""Characters; a longer turn says something."""

_PHRASES_EN = (
    r"(?:no )?(?:many |much )?(?:thanks?|thx|tysm|ty|cheers)(?: (?:you|u|ya)\b)?",
    r"(?:i|we)(?: really| truly| do)? appreciate(?: (?:it|that|this|you|your|all|the|help|time|assistance|support))*",
    r"much appreciated|(?:good ?)?bye(?:[ -]?bye)?|farewell|take care",
    r"see (?:you|ya)(?: (?:later|soon|around|then|tomorrow))?|how are you(?: doing)?\??|nice to meet you",
    r"(?:how|what) (?:can|may) i (?:help|assist|do for)(?: you)?(?: with)?(?: today| now)?\??",
    r"hi|hello|hey|howdy|greetings|good (?:morning|afternoon|evening|night|day)",
    r"(?:you|same to you|and you) too|likewise|(?:i'?ve |i have )?(?:got to|gotta) go(?: now)?",
    r"(?:have|enjoy)(?: yourself)?(?: the rest of)?(?: an?| your| the)(?: \w+)? "
    r"(?:day|night|evening|weekend|afternoon|morning|one|trip|stay|meal|flight|ride|time|holiday|vacation)",
    r"(?:that|this|it)(?:'?s| is| was| will be|'?ll be| would be|'d be) (?:all|it|everything|enough)"
    r"(?: that)?(?: (?:i|we)(?:'ll| will)?(?: really)? (?:needed|need|wanted|want|have|require))?",
    r"(?:i|we)(?:'?m| am|'re| are) (?:all )?(?:set|good|done)",
    r"(?:i |we )?(?:(?:do not|don'?t|won'?t) (?:need|have|want|require)|need|have) (?:nothing|anything|any|no)"
    r"(?: (?:other|more|further|else|help|questions?|assistance))*",
    r"nothing(?: else| more)?|no (?:more|other|further) questions",
    r"not (?:now|at (?:the|this) (?:moment|time)|today|right now)",
    r"(?:you'?re|you are|your|ur) (?:most |very |always |so )?welcome",
    r"(?:my|with|a) pleasure|not at all|no (?:problem|worries)",
    r"(?:you(?:'ve|'re| have| are| were)?|it was|that was|that's|this was)(?: all| been)*"
    r"(?: so| very| really| such| quite| most| a| great| big)* (?:helpful|kind|the best|help)",
    r"(?:i'?m |i am )?(?:so |very |really )?(?:glad|happy|pleased)(?: that)? (?:i could|i can|i was able to|to)"
    r"(?: have)?(?: be)?(?: of)? (?:help|service|assistance|assist)(?:ed)?",
    r"(?:(?:is there|do you need|(?:can|may|shall|could) i|what|how) )?"
    r"(?:(?:still|further|help|assist|do|you|i|can|may|in|with) )*"
    r"(?:any ?thing (?:else|more)|something else|assist you)"
    r"(?: (?:that|where|i|you|can|could|may|want|need|like|me|help|assist|do|to|for|in|with|out|today|now))*\??",
    r"ha(?:ha)+|lol",
)
_FILLERS_EN = (
    "a|again|ahead|alright|also|and|appreciated|as|at|awesome|brilliant|bunch|but|cool|day|dear|excellent|"
    "fantastic|fine|for|from|gotcha|guys|help|helping|helpful|here|him|it|just|kind|kindly|lot|lovely|ma'am|"
    "madam|man|me|million|much|nice|no|nope|nah|noted|now|of|oh|once|out|perfect|please|really|reply|right|sir|"
    "so|sweet|team|that|the|then|there|time|today|ton|too|truly|u|understood|us|very|well|wonderful|wow|you|"
    "your|assistance|information|info|answer|response|service|patience|support|advice|efforts|everything|"
    "friend|good|great|super|amazing|ok|okay|got|i|see|all|sure|yeah|yep|yes"
)

_PHRASES_ZH = (
    "(?:太|真|很)?(?:谢谢|感谢|多谢|谢了|谢啦|感激|麻烦[您你]了)",
    "[您你]好|大家好|早上好|上午好|中午好|下午好|晚上好|早安|晚安|再见|再会|拜拜|回头见|明天见|下次见|回见|哈喽|哈啰",
    "(?:没有?|木有|无)(?:什么|任何|其他|其它|别的|更多)*的?(?:问题|疑问|需要|事情?|需求)",
    "(?:我的)?问题(?:都|已经|全)*(?:问|解决)完?|先?就?(?:这样|这些|到这里?)",
    "不用?客气|不用?谢|别客气|客气|没关系|没事|应该的|小意思|举手之劳|很?(?:乐意|高兴|荣幸)能?为[您你](?:服务|效劳)",
    "祝?[您你]?们?(?:生活|旅途|旅行|用餐|工作|出行|一路|周末|节日|假期|玩)得?的?(?:愉快|开心|顺利|快乐|平安|顺风)",
    "有(?:任何|什么|其他|其它)?(?:问题|需要|事)请?(?:再|可以|随时)*(?:联系|找|问|咨询)[我您你]?们?",
    "(?:请问)?还?有?(?:其他|其它|别的|什么)(?:可以|能|需要|要)?(?:帮|帮助|帮到|为)[您你](?:服务|效劳)?的?吗?[?]?",
    "哈哈+|呵呵+",
)
_FILLERS_ZH = (
    r"好[的滴嘞吧]?|嗯+|哦了?|噢|喔|收到|我?(?:明白|知道|了解|懂)了?|ok|(?:真是?|实在)?(?:太|很|非常)?(?:好|棒|完美|不错)",
    r"[您你]?的?(?:耐心|细心|热心|宝贵|贴心|周到)的?",
    r"[您你]?的?(?:信息|建议|解答|回复|回答|帮助|帮忙|服务|支持|推荐|介绍|讲解|提醒)",
    r"[您你](?:真|太|人)*(?:热情|贴心|厉害|周到|好|棒)|说得对|是的|对的|没错|哇",
    r"[好的行那不没真太是实在非常很十分多万再次暂时目前现就都我您你们这么也已经了啊呀啦呢哈哟吧嘛呐诶哎]",
)

_SMALL_EN = re.compile(rf"\b(?:{'|'.join(_PHRASES_EN)})(?![\w'])")
_SMALL_ZH = re.compile("|".join(_PHRASES_ZH))
_FILLER_EN = re.compile(rf"\b(?:{_FILLERS_EN})(?![\w'])")
_FILLER_ZH = re.compile("|".join(_FILLERS_ZH))
_SAYS = re.compile(r"[\w?]")
_AGREES = re.compile(r"\b(?:yes|yeah|yep|sure|ok|okay|right|perfect)\b|好|可以|是的|对|行")


def is_small_talk(text: str, *, answers: bool = False) -> bool:
    """Whether a text is thanks, a greeting or a farewell, and nothing more.

    An acknowledgement alone ("ok", "好的") is not: it may take up an offer.

    Args:
        text: the turn.
        answers: the turn before asked something, so that a "yes, thanks" decides it.
    """
    if len(text) > _LONGEST or any(c.isdigit() for c in text):
        return False
    text = normalise(text).replace("’", "'")
    phrase, filler = (_SMALL_ZH, _FILLER_ZH) if is_cjk(text) else (_SMALL_EN, _FILLER_EN)
    rest, num_phrases = phrase.subn(" ", text)
    if not num_phrases or (answers and _AGREES.search(rest)):
        return False
    return _SAYS.search(filler.sub(" ", rest)) is None
