// Every sentence of the page in the languages that it speaks.

export const TEXTS = {
  en: {
    waits: "waits for a person", contradicts: "Contradicts", same_tag: "Shares a tag",
    notAudited: "The audit log is off, so only the record itself speaks.", session: "Session",
    confidence: "Confidence", seal: "Seal", sealed: "vouched for by this store",
    notSealed: "not vouched for", act_remember: "remembered", act_merge: "merged",
    act_edit: "edited", act_verify: "verified", act_forget: "forgotten", act_undo: "taken back",
    act_approve: "approved", act_conflict: "a contradiction was found", act_pin: "pinned",
    needs: "This token may not do that; it takes the scope {0}.",
    undoOther: "The last act was another one: {0}. Take it back?", takeBack: "Take back",
    perhaps: "Possible contradictions", holding: "Rules that hold", retire: "Retire",
    retired: "The rule holds no longer.", when: "when: {0}", always: "always",
    forgetThis: "Forget this one", anyway: "Approve all the same", topic: "Show a topic",
    topicAll: "all topics", topicEmpty: "Nothing has happened about “{0}”.", moment_first: "first",
    moment_turn: "turn", moment_latest: "latest", retry: "Try again", legend_memory: "memory",
    legend_concept: "concept", legend_conflict: "contradiction",
    language: "English", search: "Search what is remembered", memories: "Memories",
    review: "To review", decide: "To decide", timeline: "Timeline", graph: "Graph", stats: "Numbers",
    rooms: "Rooms", tags: "Tags", agents: "Agents", verified: "verified", until: "until {0}",
    forever: "for ever", by: "by {0}", unverified: "not verified",
    loading: "Loading …", empty: "Nothing is remembered yet. `hermes-lite remember \"…\"` keeps a note.",
    none: "Nothing passes these filters.", nothing: "Nothing was found: {0}",
    reviewEmpty: "Everything is verified.",
    found: "{0} found", shown: "{0} memories", failed: "That did not work: {0}",
    away: "The server does not answer. Is `hermes-lite serve` running?",
    signIn: "Sign in", signInHow: "This page needs a token. On the machine of the memory, run "
      + "`hermes-lite token create --agent me --scope read write review` and paste what it prints.",
    token: "Token", open: "Open", verify: "Verify", forget: "Forget", undo: "Undo",
    forgotten: "Forgotten.", isVerified: "Verified.", undone: "Taken back: {0}.",
    close: "Close", room: "Room", made: "Made", source: "Source", agent: "Agent", kept: "Kept",
    used: "Used", usedTimes: "{0} ×, last {1}", never: "never", importance: "Importance",
    lane: "Lane", origin: "Origin", strength: "Strength", score: "Score", level: "Level",
    hidden: "Hidden", history: "History", acts: "What happened", made_from: "Made from",
    made_into: "Drawn from it", supersedes: "Replaces", why: "Why it was found",
    sure: "{0} % sure", rules: "Rules that wait", facts: "Facts that wait",
    conflicts: "What contradicts", approve: "Approve", reject: "Reject", keep: "Keep this one",
    approved: "Approved.", rejected: "Rejected.", settled: "Settled.",
    decideEmpty: "Nothing waits for a decision.", off: "Not switched on: {0}",
    perDay: "Memories by day", perRoom: "Memories by room", perTag: "Most used tags",
    perAgent: "Memories by agent", total: "Memories", verifiedCount: "Verified",
    expiring: "Expire within 7 days", size: "On disk", graphHow: "The newest memories, "
      + "and the tags and names that connect them. A click opens; drag and scroll to look around.",
    graphEmpty: "Nothing connects yet: tags, and names in memories, appear here.",
    keys: "Keys", key_search: "search", key_move: "next, previous", key_open: "open",
    key_verify: "verify", key_forget: "forget", key_undo: "undo the last act", key_tab: "go to a tab",
    key_close: "close", theme: "Light or dark", help: "Help", readOnly: "This token may only read.",
  },
  de: {
    waits: "wartet auf einen Menschen", contradicts: "Widerspricht",
    same_tag: "Teilt ein Schlagwort",
    notAudited: "Das Protokoll ist ausgeschaltet; nur die Erinnerung selbst gibt Auskunft.",
    session: "Sitzung", confidence: "Sicherheit", seal: "Siegel",
    sealed: "von diesem Speicher verbürgt", notSealed: "nicht verbürgt", act_remember: "gemerkt",
    act_merge: "zusammengeführt", act_edit: "geändert", act_verify: "bestätigt",
    act_forget: "vergessen", act_undo: "zurückgenommen", act_approve: "genehmigt",
    act_conflict: "ein Widerspruch wurde gefunden", act_pin: "angeheftet",
    needs: "Dieser Zugang darf das nicht; nötig ist das Recht {0}.",
    undoOther: "Zuletzt geschah etwas anderes: {0}. Zurücknehmen?", takeBack: "Zurücknehmen",
    perhaps: "Mögliche Widersprüche", holding: "Regeln, die gelten", retire: "Beenden",
    retired: "Die Regel gilt nicht mehr.", when: "bei: {0}", always: "immer",
    forgetThis: "Diese vergessen", anyway: "Trotzdem genehmigen", topic: "Thema zeigen",
    topicAll: "alle Themen", topicEmpty: "Zu „{0}“ ist nichts geschehen.", moment_first: "zuerst",
    moment_turn: "Wende", moment_latest: "zuletzt", retry: "Erneut versuchen",
    legend_memory: "Erinnerung", legend_concept: "Begriff", legend_conflict: "Widerspruch",
    language: "Deutsch", search: "Im Gedächtnis suchen", memories: "Erinnerungen",
    review: "Zu prüfen", decide: "Zu entscheiden", timeline: "Zeitleiste", graph: "Netz",
    stats: "Zahlen", rooms: "Räume", tags: "Schlagworte", agents: "Agenten", verified: "bestätigt",
    until: "bis {0}", forever: "für immer", by: "von {0}", unverified: "nicht bestätigt",
    loading: "Wird geladen …",
    empty: "Noch ist nichts gemerkt. `hermes-lite remember \"…\"` behält eine Notiz.",
    none: "Nichts passt zu dieser Auswahl.", nothing: "Nichts gefunden: {0}",
    reviewEmpty: "Alles ist bestätigt.",
    found: "{0} gefunden", shown: "{0} Erinnerungen", failed: "Das ging nicht: {0}",
    away: "Der Server antwortet nicht. Läuft `hermes-lite serve`?",
    signIn: "Anmelden", signInHow: "Diese Seite braucht einen Zugang. Auf dem Rechner des "
      + "Gedächtnisses `hermes-lite token create --agent ich --scope read write review` aufrufen "
      + "und hier einfügen, was dort steht.",
    token: "Zugang", open: "Öffnen", verify: "Bestätigen", forget: "Vergessen", undo: "Rückgängig",
    forgotten: "Vergessen.", isVerified: "Bestätigt.", undone: "Zurückgenommen: {0}.",
    close: "Schließen", room: "Raum", made: "Vom", source: "Quelle", agent: "Agent", kept: "Bleibt",
    used: "Benutzt", usedTimes: "{0} ×, zuletzt {1}", never: "nie", importance: "Wichtigkeit",
    lane: "Spur", origin: "Herkunft", strength: "Stärke", score: "Punkte", level: "Ebene",
    hidden: "Verborgen", history: "Geschichte", acts: "Was geschah", made_from: "Entstanden aus",
    made_into: "Daraus entstand", supersedes: "Ersetzt", why: "Warum gefunden",
    sure: "{0} % sicher", rules: "Regeln, die warten", facts: "Fakten, die warten",
    conflicts: "Was sich widerspricht", approve: "Gilt", reject: "Ablehnen", keep: "Dieses behalten",
    approved: "Gilt jetzt.", rejected: "Abgelehnt.", settled: "Entschieden.",
    decideEmpty: "Nichts wartet auf eine Entscheidung.", off: "Nicht eingeschaltet: {0}",
    perDay: "Erinnerungen je Tag", perRoom: "Erinnerungen je Raum", perTag: "Häufigste Schlagworte",
    perAgent: "Erinnerungen je Agent", total: "Erinnerungen", verifiedCount: "Bestätigt",
    expiring: "Verfallen in 7 Tagen", size: "Auf der Platte", graphHow: "Die neuesten "
      + "Erinnerungen, und was sie verbindet: Schlagworte und Namen. Ein Klick öffnet; ziehen und "
      + "rollen, um sich umzusehen.",
    graphEmpty: "Noch verbindet nichts: Schlagworte und Namen aus Erinnerungen erscheinen hier.",
    keys: "Tasten", key_search: "suchen", key_move: "weiter, zurück", key_open: "öffnen",
    key_verify: "bestätigen", key_forget: "vergessen", key_undo: "letzten Schritt zurücknehmen",
    key_tab: "zu einem Reiter", key_close: "schließen", theme: "Hell oder dunkel", help: "Hilfe",
    readOnly: "Dieser Zugang darf nur lesen.",
  },
  zh: {
    waits: "等待人工审核", contradicts: "与之矛盾", same_tag: "同标签",
    notAudited: "审计日志未开启，仅有记录本身的信息。", session: "会话", confidence: "置信度",
    seal: "印记", sealed: "由本存储担保", notSealed: "无担保", act_remember: "记住", act_merge: "合并",
    act_edit: "修改", act_verify: "核实", act_forget: "忘记", act_undo: "撤销", act_approve: "批准",
    act_conflict: "发现矛盾", act_pin: "固定", needs: "此令牌无权操作，需要 {0} 权限。",
    undoOther: "最后一次操作是另一项：{0}。要撤销吗？", takeBack: "撤销它", perhaps: "可能的矛盾",
    holding: "生效的规则", retire: "停用", retired: "规则已停用。", when: "触发词：{0}", always: "始终",
    forgetThis: "忘记这条", anyway: "仍然批准", topic: "显示主题", topicAll: "所有主题",
    topicEmpty: "“{0}”还没有记录。", moment_first: "最初", moment_turn: "转折",
    moment_latest: "最新", retry: "重试", legend_memory: "记忆", legend_concept: "概念",
    legend_conflict: "矛盾",
    language: "中文", search: "搜索记忆", memories: "记忆", review: "待核实", decide: "待决定",
    timeline: "时间线", graph: "关系图", stats: "统计", rooms: "房间", tags: "标签", agents: "代理",
    verified: "已核实", until: "保留到 {0}", forever: "永久保留", by: "来自 {0}", unverified: "未核实",
    loading: "正在加载…", empty: "还没有记忆。用 `hermes-lite remember \"…\"` 记下一条。",
    none: "没有符合筛选条件的记忆。", nothing: "没有找到：{0}", reviewEmpty: "全部都已核实。",
    found: "找到 {0} 条", shown: "{0} 条记忆", failed: "操作失败：{0}",
    away: "服务器没有响应。`hermes-lite serve` 在运行吗？",
    signIn: "登录", signInHow: "此页面需要令牌。请在存放记忆的机器上运行 "
      + "`hermes-lite token create --agent me --scope read write review`，并粘贴它输出的内容。",
    token: "令牌", open: "打开", verify: "核实", forget: "忘记", undo: "撤销", forgotten: "已忘记。",
    isVerified: "已核实。", undone: "已撤销：{0}。", close: "关闭", room: "房间", made: "时间",
    source: "来源", agent: "代理", kept: "保留", used: "使用", usedTimes: "{0} 次，最近 {1}",
    never: "从未", importance: "重要性", lane: "通道", origin: "出处", strength: "强度", score: "分数",
    level: "层级", hidden: "已脱敏", history: "历史", acts: "经过", made_from: "由这些得出",
    made_into: "由它得出", supersedes: "取代", why: "为何找到", sure: "{0}% 把握",
    rules: "等待的规则", facts: "等待的事实", conflicts: "相互矛盾", approve: "批准", reject: "拒绝",
    keep: "保留这条", approved: "已批准。", rejected: "已拒绝。", settled: "已决定。",
    decideEmpty: "没有等待决定的内容。", off: "未启用：{0}", perDay: "每天的记忆", perRoom: "各房间的记忆",
    perTag: "最常用的标签", perAgent: "各代理的记忆", total: "记忆", verifiedCount: "已核实",
    expiring: "7 天内到期", size: "磁盘占用", graphHow: "最新的记忆，以及连接它们的标签和名称。点击打开；可拖动和缩放。",
    graphEmpty: "还没有关联：标签和记忆中的名称会出现在这里。", keys: "快捷键", key_search: "搜索",
    key_move: "下一条、上一条", key_open: "打开", key_verify: "核实", key_forget: "忘记",
    key_undo: "撤销上一步", key_tab: "切换标签页", key_close: "关闭", theme: "浅色或深色", help: "帮助",
    readOnly: "此令牌只能读取。",
  },
};

export const LANGUAGES = Object.entries(TEXTS).map(([code, texts]) => [code, texts.language]);

let current = "en";

export function chooseLanguage(code) {
  const wanted = code ?? localStorage.getItem("hermes-language") ?? navigator.language;
  current = TEXTS[wanted.slice(0, 2)] ? wanted.slice(0, 2) : "en";
  if (code) localStorage.setItem("hermes-language", current);
  document.documentElement.lang = current;
  return current;
}

// Return a sentence; {0}, {1} are replaced by the values.
export function t(name, ...values) {
  return TEXTS[current][name].replace(/\{(\d)\}/g, (_, number) => values[number]);
}

// Return a sentence, or *otherwise* where none has this name.
export function tOr(name, otherwise) {
  return TEXTS[current][name] ?? otherwise;
}

export function day(time) {
  if (!time) return "";
  return new Date(time).toLocaleDateString(current, { year: "numeric", month: "short", day: "numeric" });
}

export function moment(time) {
  if (!time) return "";
  return new Date(time).toLocaleString(current, { dateStyle: "medium", timeStyle: "short" });
}

export function number(value) {
  return value.toLocaleString(current);
}
