"""The built-in rules: templates of prompt injection, in English and Chinese.

Each is a family of phrasings of one intent, not a list of known prompts. They look at what users
and tools say; an operator's own system message may well speak of such things.
"""

from __future__ import annotations

from router.guard.patterns import literal, phrase, words
from router.guard.policy import PLAIN_PROMPT, Action, AnchoredPattern, Rule, Stage

_DROP = (
    "(?:ignor(?:e|ing)|disregard(?:ing)?|forget(?: about)?|override|overriding|bypass(?:ing)?"
    "|neglect|discard|overlook|set aside|put aside|throw (?:away|out)|erase|abandon|cancel|void"
    "|pay no (?:attention|heed|mind) to|(?:do not|don't|never|stop|quit|cease) "
    "(?:follow(?:ing)?|obey(?:ing)?|listen(?:ing)? to|apply(?:ing)?|comply(?:ing)? with)"
    "|(?:no longer|not) (?:follow|obey|bound by)|(?:break|breaking) (?:free )?(?:of|from)"
    "|wipe|skip(?: over)?|delete|drop|leave behind|unlearn)"
)
_NEAR_DROP = (
    "ignor|disregard|forget|overrid|bypass|neglect|discard|overlook|aside|throw|erase|abandon"
    "|cancel|void|pay no|follow|obey|listen|apply|comply|bound by|break|wipe|skip|delet|drop"
    "|leave|unlearn"
)
_PRIOR = (
    "(?:previous|prior|above|earlier|preceding|foregoing|former|past|existing|original|initial"
    "|your|system|safety|developer|given|built in|hidden|default|openai)"
)
_NEAR_PRIOR = (
    "previous|prior|above|earlier|preceding|foregoing|former|past|existing|original|initial|your"
    "|system|safety|developer|given|built|hidden|default|openai"
)
_ORDERS = (
    "(?:instructions?|directions|directives?|(?:system )?prompts?|commands?|orders|rules|guidelines"
    "|guidance|polic(?:y|ies)|guard ?rails?|constraints?|restrictions?|programming|training"
    "|safeguards|limitations?|protocols?|(?:content )?filters?)"
)
_NEAR_ORDERS = (
    "instruction|directi|prompt|command|orders|rules|guid|polic|rail|constraint|restriction"
    "|programming|training|safeguard|limitation|protocol|filter"
)
_FREE = (
    "(?:unrestricted|unfiltered|uncensored|unbound|jailbroken|unaligned|unchained|rule free"
    "|(?:evil|amoral|unethical|lawless|limitless|unlimited) (?:ai|assistant|chatbot|bot|twin|model"
    "|version|persona|confidant|language model))"
)
_NEAR_FREE = (
    "unrestricted|unfiltered|uncensored|unbound|jailbroken|unaligned|unchained|rule free|rule-free"
    "|evil|amoral|unethical|lawless|limitless|unlimited"
)
_BEFORE_THIS = (
    "(?:above|before(?:hand)?|preced(?:es|ing)|prior to|previously|up to)(?! (?:an?|each|every|your"
    "|noon|the(?! (?:conversation|chat|dialog(?:ue)?|user|first message|current|start|beginning"
    "|line|present)))\\b)"
)
"""Before what is being said: not above a match, nor before the first comma."""
_BE = (
    "(?:you are(?: now)?|you're(?: now)?|you will(?: now)? be|act(?:ing)? (?:as|like)|become"
    "|be|pretend (?:to be|you are|you're|that you are)|roleplay as|role play as|imagine"
    "(?: that)? you are|simulate|behave (?:as|like)|play(?: the role of)?|assume|enter|switch"
    "(?: in)?to|speak as|respond as|answer as|portray|emulate)"
)
_LIMITS = (
    "(?:rules|restrictions?|limitations?|filters?|filtering|guidelines|guard ?rails?|constraints?"
    "|ethics|morals|morality|censorship|safeguards|boundaries)"
)
_NEAR_LIMITS = (
    "rules|restriction|limitation|filter|guideline|rail|constraint|ethic|moral|censor|safeguard"
    "|boundaries"
)
_TELL = (
    "(?:reveal|show|print|repeat|output|display|tell|give|share|leak|dump|disclose|recite|copy"
    "|write|paste|expose|summari[sz]e|translate|encode|return|quote|spell out|what (?:is|are|was"
    "|were|does|do)|what's|list|provide|send|echo|divulge|type|reproduce|regurgitate)"
)
_HIDDEN = (
    "(?:system|initial|original|hidden|secret|internal|developer|first|base|pre|underlying"
    "|confidential|opening|starting|custom|private|exact|verbatim|full|entire|complete)"
)
_NEAR_HIDDEN = (
    "system|initial|original|hidden|secret|internal|developer|first|base|pre|underlying"
    "|confidential|opening|starting|custom|private|exact|verbatim|full|entire|complete"
)
_TEXT = (
    "(?:prompts?|instructions?|messages?|rules|guidelines|directives?|configuration|setup|preamble"
    "|context|brief(?:ing)?)"
)
_NEAR_TEXT = (
    "prompt|instruction|message|rules|guideline|directive|configuration|setup|preamble|context"
    "|brief"
)


def _override() -> tuple[AnchoredPattern, ...]:
    return (
        phrase(f"{_DROP} {words(0, 5)}{_PRIOR} {words(0, 3)}{_ORDERS}", _NEAR_DROP, _NEAR_ORDERS),
        phrase(
            f"{_DROP} {words(0, 2)}(?:all|any|every) {words(0, 3)}{_ORDERS} {words(0, 3)}"
            "(?:above|before|so far|previously|earlier|you|given|and|that)",
            *(_NEAR_DROP, _NEAR_ORDERS),
        ),
        phrase(
            f"{_DROP} {words(0, 2)}{_ORDERS} {words(0, 3)}(?:earlier|so far|{_BEFORE_THIS})",
            *(_NEAR_DROP, _NEAR_ORDERS, "earlier|so far|above|before|preced|prior to|previously"),
        ),
        phrase(
            f"{_DROP} (?:all(?: of| that)?|everything|anything|whatever|what|the things|the text"
            f"|that|the) {words(0, 4)}(?:{_BEFORE_THIS}|you were|you have been|you've been"
            "|been told|was said|you learned)",
            *(_NEAR_DROP, "above|before|you were|you have|you've|told|said|learned|previously"),
        ),
        phrase(
            f"(?:{_PRIOR} {words(0, 1)}{_ORDERS}|{_ORDERS} (?:above|before|so far)) {words(0, 2)}"
            "(?:void|obsolete|cancell?ed|revoked|invalid|no longer|outdated|superseded|do not apply"
            "|don't apply|expired|over(?:ridden)?|lifted|suspended|replaced)",
            *(_NEAR_ORDERS, f"{_NEAR_PRIOR}|before|so far"),
            "void|obsolete|cancel|revoked|invalid|no longer|outdated|superseded|apply|expired|over"
            "|lifted|suspended|replaced",
        ),
        phrase(
            f"(?:your|follow (?:these|my|the)|you have) new {words(0, 1)}(?:instructions|directives"
            "|orders|prompt|programming|task is|role is|objective is|goal is|purpose is)",
            "new",
            "instructions|directives|orders|prompt|programming|task|role|objective|goal|purpose",
            "you|follow",
        ),
        phrase(
            f"instead of (?:following |obeying )?(?:your|the) {words(0, 2)}(?:system|original"
            f"|initial|previous|prior) {_ORDERS}",
            *("instead", _NEAR_ORDERS, "system|original|initial|previous|prior"),
        ),
    )


def _role_play() -> tuple[AnchoredPattern, ...]:
    bad_modes = "(?:jailbreak|god|dan|sudo|unrestricted|evil|uncensored)"
    modes = "developer|jailbreak|god|dan|debug|admin|sudo|unrestricted|root|evil|uncensored"
    return (
        phrase("do anything now", "anything"),
        phrase(
            rf"{_BE} (?:an? |the |my )?{words(0, 3)}(?:dan|{_FREE})\b",
            f" dan |dan,|dan.|dan'|\"dan|(dan|{_NEAR_FREE}",
        ),
        phrase(
            f"(?:{modes}|maintenance|opposite) mode (?:is )?(?:now )?(?:enabled|activated?|engaged"
            "|unlocked|active|(?:on|output)(?:[.!:;]|$))",
            *("mode", f"{modes}|maintenance|opposite"),
        ),
        phrase(
            "(?:enable|activate|enter|turn on|switch (?:in)?to|engage|unlock) "
            f"(?:{words(0, 1)}your (?:{modes})|{words(0, 2)}{bad_modes}) mode",
            *("mode", modes),
        ),
        phrase(
            f"(?:{_BE}|from now on|you have|you can|you will|an? (?:ai|assistant|chatbot|bot"
            f"|persona|character|language model)) {words(0, 6)}(?:no|without(?: any)?|free (?:of"
            "|from)(?: any| all)?|not bound by(?: any)?|zero|lacks? (?:any|all)|unbound by(?: any)?"
            f"|ignores?(?: all)?|beyond(?: all)?) {words(0, 2)}{_LIMITS}\\b",
            *(_NEAR_LIMITS, "no |without|free|bound by|zero|lack|ignore|beyond"),
            "you|act|become|be |pretend|role|simul|behav|play|assum|enter|switch|speak|respond"
            "|answer|portray|emulate|from now on|ai |assistant|bot |persona|character|model",
        ),
        phrase(
            "(?:late|dead|deceased|dear) (?:grandma|grandmother|grandpa|grandfather|mother|father)"
            f" {words(0, 3)}(?:used to|would|always)",
            *("late|dead|deceased|dear", "grandm|grandp|grandf|mother|father"),
        ),
        phrase(
            "(?:stay|remain|keep) in character (?:and|no matter|even if|at all times)"
            "|(?:never|don't|do not|must not|cannot) (?:break|leave|drop) (?:your )?character",
            *("character", "stay|remain|keep|break|leave|drop"),
        ),
        phrase(
            f"(?:you|ai|assistant) {words(0, 2)}(?:cannot|can't|can never|must not|must never"
            "|mustn't|will not|will never|won't|never|may not|are not allowed to) (?:ever )?"
            "(?:refuse|decline|say no)",
            *("refuse|decline|say no", "cannot|can't|never|not|mustn't|won't", "you|ai |assistant"),
        ),
    )


def _extraction() -> tuple[AnchoredPattern, ...]:
    return (
        phrase(
            f"{_TELL} {words(0, 5)}your {words(0, 2)}{_HIDDEN} {words(0, 2)}{_TEXT}",
            *(_NEAR_TEXT, _NEAR_HIDDEN, "your"),
        ),
        phrase(
            f"{_TELL} {words(0, 5)}(?:the|all|any|every) {words(0, 2)}(?:system|initial|hidden"
            f"|secret|developer|confidential|opening) {_TEXT} {words(0, 4)}(?:verbatim|word for "
            "word|you|above|exactly|in full|here|character by character|code block|its entirety)",
            *(_NEAR_TEXT, "system|initial|hidden|secret|developer|confidential|opening"),
            "verbatim|word for|you|above|exactly|in full|here|character by|code block|entirety",
        ),
        phrase(
            "(?:repeat|print|output|echo|copy|write|show|recite|display|return|give|type|paste"
            f"|reproduce|tell) {words(0, 3)}(?:everything|all|the text|the words|the lines"
            "|the content|the conversation|what is|what was|whatever|every word|each line)"
            f" {words(0, 4)}{_BEFORE_THIS}",
            "above|before|preced|prior to|previously|up to",
            "everything|all|the text|words|lines|content|conversation|what|every|each line",
            "repeat|print|output|echo|copy|write|show|recite|display|return|give|type|paste"
            "|reproduce|tell",
        ),
        phrase(
            f"what (?:were|are|have|had|did) (?:you|they|your) {words(0, 3)}(?:told|instructed"
            f"|programmed|instructions?|tell) {words(0, 4)}(?:before|at the (?:start|beginning|top)"
            "|not to|first|say|do|by|initially)",
            *("told|instruct|programmed|tell", "what", "you|they"),
        ),
        phrase(
            "(?:starting|beginning|begins?|starts?) (?:with|from) (?:the words |the phrase )?"
            "(?:you are|you're)",
            *("start|begin", "you are|you're"),
        ),
    )


def _delimiters() -> tuple[AnchoredPattern, ...]:
    return (
        literal(
            r"<\|? ?(?:im_start|im_end|im_sep|system|user|assistant|endoftext|end|eot_id|eom_id"
            r"|start_header_id|end_header_id|begin_of_text|end_of_text|endofprompt) ?\|>",
            ["|>"],
        ),
        literal(r"\[ ?/? ?inst ?\]|< ?< ?/? ?sys ?> ?>", ["inst", "sys"], ["]", ">"]),
        literal(
            r"<start_of_turn>|<end_of_turn>|<bos>|<eos>|</s>", ["_turn>", "<bos>", "<eos>", "</s"]
        ),
        literal(
            r"</?(?:system|sys|system_prompt|instructions?|admin|developer)>",
            [
                "system>",
                "sys>",
                "_prompt>",
                "instruction>",
                "instructions>",
                "admin>",
                "developer>",
            ],
        ),
        literal(
            r"\[/?(?:system|sys|admin|developer)(?: [a-z]+)?\][: ]",
            ["[/", "[sys", "[adm", "[dev"],
            ["sys", "admin", "developer"],
        ),
        literal(
            r"#{2,} ?(?:system|instruction|assistant|new instruction)s?\b ?(?:prompt|message)?:?",
            ["##"],
            ["system", "instruction", "assistant"],
        ),
        literal(
            r"[\"']role[\"'] ?: ?[\"'](?:system|developer)[\"']", ["role"], ["system", "developer"]
        ),
        literal(
            r"(?:[-=*#_~]{3,} ?)(?:begin|end|start|new|stop)(?: of)? (?:the )?(?:system|user|admin"
            r"|prompt|instruction|conversation|context)s?\b",
            ["system", "user", "admin", "prompt", "instruction", "conversation", "context"],
            ["---", "===", "***", "###", "___", "~~~"],
            ["begin", "end", "start", "new", "stop"],
        ),
        literal(
            r"\bend of (?:the )?(?:user|system) (?:input|prompt|message|query|instructions?)"
            r"|\b(?:begin|new|updated) system (?:prompt|message|instructions?)\b",
            ["end of", "begin", "new", "updated"],
            ["system", "user"],
            ["input", "prompt", "message", "query", "instruction"],
        ),
        literal(
            r"(?:^|[.!?:>\])] ?)(?:system|admin|developer)(?: (?:note|message|override|alert"
            r"|update))? ?: ?(?:you|ignore|the|new|all|from|disregard|override|assistant|user"
            r"|this)\b",
            ["system", "admin", "developer"],
            [":"],
        ),
    )


def _encoded_orders() -> tuple[AnchoredPattern, ...]:
    code = "(?:base ?64|rot ?13|hex(?:adecimal)?|binary|morse|caesar|ascii|url|unicode|reversed?)"
    follow = "(?:follow|execute|obey|do|perform|run|carry out|comply|act|answer|respond|treat)"
    near_code = "base64|base 64|rot13|rot 13|hex|binary|morse|caesar|ascii|url|unicode|revers"
    near_follow = "follow|execut|obey|do|perform|run|carry|comply|act|answer|respond|treat"
    return (
        phrase(
            "(?:decode|decipher|decrypt|unscramble|translate|read|convert|un?reverse) "
            rf"{words(0, 6)}{code} {words(0, 8)}{follow}\b",
            *(near_code, "decode|decipher|decrypt|unscramble|translate|read|convert|reverse"),
            near_follow,
        ),
        phrase(
            f"{follow} {words(0, 4)}{code} (?:encoded |string |text |message )?{words(0, 2)}"
            "(?:instructions?|commands?|orders?|message)",
            *(near_code, near_follow, "instruction|command|order|message"),
        ),
        phrase(
            "(?:decode|decipher|decrypt|unscramble) (?:it|this|that|the following|the message)"
            rf" {words(0, 4)}{follow}\b (?:what|it|its|the|as|accordingly)",
            *("decode|decipher|decrypt|unscramble", near_follow),
        ),
        phrase(
            f"(?:answer|respond|reply|output|encode|return|write) {words(0, 6)}{code} "
            f"{words(0, 4)}(?:so that|to (?:avoid|bypass|evade|get around|hide))",
            *(near_code, "so that|avoid|bypass|evade|get around|hide"),
        ),
    )


_ZH_DROP = (
    "(?:忽略|无视|無視|忘记|忘記|忘掉|忘了|不要(?:理会|遵守|遵循|管)|不用(?:理会|遵守|遵循|管)|跳过|抛开|别管"
    "|别再(?:遵守|遵循)|停止(?:遵守|遵循|执行)|无需遵守|丢掉|撇开|抛弃|清除|清空|删除|作废|覆盖|绕过|违反|放弃"
    "|不必(?:理会|遵守|遵循)|摆脱|取消)"
)
_ZH_NEAR_DROP = (
    *("忽略", "视", "視", "忘", "不要", "不用", "跳过", "抛", "别", "停止", "无需", "丢掉", "撇开"),
    *("清", "删除", "作废", "覆盖", "绕过", "违反", "放弃", "不必", "摆脱", "取消"),
)
_ZH_PRIOR = (
    "(?:之前|以上|上面|上述|先前|前面|此前|所有|全部|一切|任何|你的|系统|系統|原有|原来|既定|最初|初始|预设"
    "|安全|开头|刚才|过去|以前)"
)
_ZH_ORDERS = (
    "(?:指令|指示|提示|规则|規則|要求|设定|設定|限制|命令|约束|说明|准则|规定|内容|对话|训练|政策|过滤|规范"
    "|守则|话|限定)"
)
_ZH_NEAR_ORDERS = (
    *(
        "指令",
        "指示",
        "提示",
        "规则",
        "規則",
        "要求",
        "设定",
        "設定",
        "限制",
        "命令",
        "约束",
        "说明",
    ),
    *("准则", "规定", "内容", "对话", "训练", "政策", "过滤", "规范", "守则", "话", "限定"),
)
_ZH_FREE = (
    "(?:没有|不受|无|摆脱|不遵守|无需遵守|不考虑|突破|无视|脱离|不再受|沒有)[^。！？]{0,6}"
    "(?:限制|约束|审查|道德|规则|过滤|伦理|底线|束缚|規則)"
)
_ZH_NEAR_FREE = ("限制", "约束", "审查", "道德", "规则", "过滤", "伦理", "底线", "束缚", "規則")
_ZH_TELL = (
    "(?:显示|顯示|输出|輸出|告诉我|打印|重复|重複|泄露|说出|展示|给我看|复述|公开|背出|透露|翻译|列出|写出"
    "|原样|贴出|发给我|是什么|揭示|念出|提供|总结)"
)
_ZH_HIDDEN = "(?:系统|系統|初始|隐藏|内部|最初|开头|原始|预设|后台|开发者|保密)"
_ZH_NEAR_HIDDEN = (
    *(
        "系统",
        "系統",
        "初始",
        "隐藏",
        "内部",
        "最初",
        "开头",
        "原始",
        "预设",
        "后台",
        "开发者",
        "保密",
    ),
)
_ZH_TEXT = "(?:提示词|提示|指令|设定|prompt|规则|说明|消息|指示)"
_ZH_NEAR_TEXT = ("提示", "指令", "设定", "prompt", "规则", "说明", "消息", "指示")
_ZH_BE = (
    "(?:你现在是|你現在是|扮演|假装|假设你|充当|你将成为|你是一个|想象你|模拟|从现在起你|从现在开始"
    "|变成|化身)"
)


def _chinese() -> tuple[AnchoredPattern, ...]:
    return (
        literal(
            rf"{_ZH_DROP}[^。！？]{{0,10}}?{_ZH_PRIOR}[^。！？]{{0,8}}?{_ZH_ORDERS}",
            *(_ZH_NEAR_DROP, _ZH_NEAR_ORDERS),
        ),
        literal(
            rf"{_ZH_PRIOR}[^。！？]{{0,4}}?{_ZH_ORDERS}[^。！？]{{0,6}}?(?:作废|无效|失效|不再|取消|都是假的"
            "|不适用|可以忽略|不用管|已过期)",
            _ZH_NEAR_ORDERS,
            ["作废", "无效", "失效", "不再", "取消", "假的", "不适用", "忽略", "不用管", "已过期"],
        ),
        literal(rf"{_ZH_BE}[^。！？]{{0,24}}?{_ZH_FREE}", _ZH_NEAR_FREE),
        literal(
            "(?:进入|启用|开启|切换到|激活|打开|启动|解锁)[^。！？]{0,6}?(?:越狱|开发者|上帝|dan|无限制|调试|管理员"
            "|邪恶)[^。！？]{0,2}?模式|越狱模式|dan ?模式|(?:开发者|上帝)模式已",
            ["模式"],
        ),
        literal(
            rf"{_ZH_TELL}[^。！？]{{0,14}}?{_ZH_HIDDEN}[^。！？]{{0,6}}?{_ZH_TEXT}",
            *(_ZH_NEAR_TEXT, _ZH_NEAR_HIDDEN),
        ),
        literal(
            rf"{_ZH_HIDDEN}(?:的)?{_ZH_TEXT}[^。！？]{{0,8}}?{_ZH_TELL}",
            *(_ZH_NEAR_TEXT, _ZH_NEAR_HIDDEN),
        ),
        literal(
            "(?:重复|输出|打印|复述|显示|写出|翻译)[^。！？]{0,8}?(?:以上|上面|之前|前面|上述|此前)[^。！？]{0,6}?"
            "(?:全部|所有|每|一切|文字|内容|文本|话)",
            ["以上", "上面", "之前", "前面", "上述", "此前"],
            ["全部", "所有", "每", "一切", "文字", "内容", "文本", "话"],
        ),
    )


UNTRUSTED = frozenset({"user", "assistant", "tool", PLAIN_PROMPT})


def injection_rules(action: Action) -> tuple[Rule, ...]:
    """One rule for each family, all with this action."""
    families = {
        "injection.override": _override(),
        "injection.role_play": _role_play(),
        "injection.extraction": _extraction(),
        "injection.encoded": _encoded_orders(),
        "injection.chinese": _chinese(),
    }
    rules = [
        Rule(
            name=name,
            action=action,
            patterns=patterns,
            stages=frozenset({Stage.INPUT}),
            roles=UNTRUSTED,
            disguised=True,
        )
        for name, patterns in families.items()
    ]
    delimiters = Rule(
        name="injection.delimiters",
        action=action,
        patterns=_delimiters(),
        stages=frozenset({Stage.INPUT}),
        # Whoever sends a plain prompt may have rendered the chat template already.
        roles=UNTRUSTED - {PLAIN_PROMPT},
        disguised=True,
    )
    return (*rules, delimiters)
