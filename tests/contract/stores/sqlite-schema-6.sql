PRAGMA application_id = 1935960435;
PRAGMA user_version = 6;
BEGIN TRANSACTION;
CREATE TABLE attempts (
    crawl    TEXT NOT NULL,
    batch    INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    job      TEXT NOT NULL UNIQUE,
    node     TEXT NOT NULL,
    url      TEXT NOT NULL,
    state    TEXT NOT NULL,
    sent_at  REAL NOT NULL,
    ended_at REAL,
    reason   TEXT NOT NULL DEFAULT '',
    report   TEXT NOT NULL DEFAULT '{}',
    part     TEXT NOT NULL DEFAULT '', worker TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (crawl, batch, number),
    FOREIGN KEY (crawl, batch) REFERENCES batches (crawl, number) ON DELETE CASCADE
);
INSERT INTO "attempts" VALUES('c',1,1,'c.b1.a1','one','http://one:6800','accepted',1.0,20.0,'','{"items": 2}','1.jl','');
INSERT INTO "attempts" VALUES('c',2,1,'c.b2.a1','one','http://one:6800','running',1.0,NULL,'','{}','','');
INSERT INTO "attempts" VALUES('c',3,1,'c.b3.a1','one','http://one:6800','failed',1.0,20.0,'broken','{}','','');
INSERT INTO "attempts" VALUES('c',5,1,'c.b5.a1','one','http://one:6800','failed',1.0,20.0,'broken','{}','','');
INSERT INTO "attempts" VALUES('shop',5,1,'shop.b5.a1','one','http://one:6800','running',11.0,NULL,'','{}','','c.w1.a1');
INSERT INTO "attempts" VALUES('shop',1,1,'shop.b1.a1','one','http://one:6800','running',11.0,NULL,'','{}','','c.w1.a1');
INSERT INTO "attempts" VALUES('shop',2,1,'shop.b2.a1','two','http://two:6800','acked',11.0,12.0,'','{"items": 1}','','c.w2.a1');
CREATE TABLE batch_numbers (
    crawl TEXT PRIMARY KEY REFERENCES crawls (id) ON DELETE CASCADE,
    last  INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "batch_numbers" VALUES('c',8);
INSERT INTO "batch_numbers" VALUES('shop',6);
CREATE TABLE batches (
    crawl     TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    number    INTEGER NOT NULL,
    size      INTEGER NOT NULL,
    state     TEXT NOT NULL,
    attempts  INTEGER NOT NULL DEFAULT 0,
    sealed_at REAL NOT NULL,
    reason    TEXT NOT NULL DEFAULT '', forgiven INTEGER NOT NULL DEFAULT 0, parent INTEGER NOT NULL DEFAULT 0, slot TEXT NOT NULL DEFAULT '', priority INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (crawl, number)
);
INSERT INTO "batches" VALUES('c',1,2,'done',1,10.0,'',0,0,'',0);
INSERT INTO "batches" VALUES('c',2,2,'running',1,10.0,'',0,0,'',0);
INSERT INTO "batches" VALUES('c',3,2,'dead',1,10.0,'broken',0,0,'',0);
INSERT INTO "batches" VALUES('c',4,2,'split',0,10.0,'',0,0,'',0);
INSERT INTO "batches" VALUES('c',5,2,'failed',1,10.0,'broken',0,0,'',0);
INSERT INTO "batches" VALUES('c',6,2,'sealed',0,10.0,'',0,0,'',0);
INSERT INTO "batches" VALUES('c',7,1,'sealed',0,10.0,'',0,4,'',0);
INSERT INTO "batches" VALUES('c',8,1,'sealed',0,10.0,'',0,4,'',0);
INSERT INTO "batches" VALUES('shop',1,2,'running',1,10.0,'',0,0,'x',5);
INSERT INTO "batches" VALUES('shop',2,2,'running',1,10.0,'',0,0,'y',0);
INSERT INTO "batches" VALUES('shop',3,1,'sealed',0,10.0,'',0,0,'y',0);
INSERT INTO "batches" VALUES('shop',4,1,'sealed',0,10.0,'',0,0,'z',0);
INSERT INTO "batches" VALUES('shop',5,1,'running',1,10.0,'',0,0,'',0);
INSERT INTO "batches" VALUES('shop',6,1,'sealed',0,12.0,'',0,0,'w',0);
CREATE TABLE counts (
    crawl TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    name  TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (crawl, name)
) WITHOUT ROWID;
INSERT INTO "counts" VALUES('c','found',18);
INSERT INTO "counts" VALUES('c','sealed',12);
INSERT INTO "counts" VALUES('shop','sealed',8);
CREATE TABLE crawls (
    id        TEXT PRIMARY KEY,
    project   TEXT NOT NULL,
    spider    TEXT NOT NULL,
    state     TEXT NOT NULL,
    created   REAL NOT NULL,
    ended     REAL,
    version   TEXT,
    options   TEXT NOT NULL DEFAULT '{}',
    pid       INTEGER,
    beat      REAL,
    exit_code INTEGER,
    message   TEXT NOT NULL DEFAULT '',
    summary   TEXT NOT NULL DEFAULT '{}'
, wanted TEXT NOT NULL DEFAULT '', host TEXT NOT NULL DEFAULT '', number INTEGER, kind TEXT NOT NULL DEFAULT 'crawl', standing INTEGER NOT NULL DEFAULT 0, turns INTEGER NOT NULL DEFAULT 0);
INSERT INTO "crawls" VALUES('c','p','s','starting',1.5,NULL,NULL,'{"args": {"a": "\u00fc"}, "signature": "62e65eef.ovBn3rlZPMrUh67lKOT6yQ"}',7,NULL,NULL,'','{}','','',1,'crawl',0,0);
INSERT INTO "crawls" VALUES('shop','p','s','starting',2.0,NULL,NULL,'{"pull": true, "workers": {"last": 3, "hired": [{"number": 2, "job": "shop.w2.a1", "url": "http://one:6800", "lane": "", "since": 7.0, "spider": "", "project": "", "version": "", "introduces": false}, {"number": 3, "job": "shop.w3.a1", "url": "http://one:6800", "lane": "", "since": 8.0, "spider": "", "project": "", "version": "", "introduces": false}]}, "signature": "62e65eef.ST7OU33A4aztpmtpPG75tA"}',7,NULL,NULL,'','{}','','',2,'frontier',1,4);
CREATE TABLE grants (
    key INTEGER NOT NULL REFERENCES throttle_keys (number) ON DELETE CASCADE,
    at  INTEGER NOT NULL,
    PRIMARY KEY (key, at)
) WITHOUT ROWID;
INSERT INTO "grants" VALUES(1,1795415104234018);
INSERT INTO "grants" VALUES(1,1795415110234018);
INSERT INTO "grants" VALUES(1,1795415116234018);
CREATE TABLE hungry (
    crawl  TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    worker TEXT NOT NULL,
    at     REAL NOT NULL,
    PRIMARY KEY (crawl, worker)
) WITHOUT ROWID;
CREATE TABLE leases (
    crawl   TEXT NOT NULL,
    batch   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    holder  TEXT NOT NULL,
    until   REAL NOT NULL,
    PRIMARY KEY (crawl, batch, attempt),
    FOREIGN KEY (crawl, batch, attempt) REFERENCES attempts (crawl, batch, number) ON DELETE CASCADE
) WITHOUT ROWID;
INSERT INTO "leases" VALUES('c',2,1,'me',2.79541510405001926431e+09);
INSERT INTO "leases" VALUES('shop',1,1,'c.w1.a1',2.79541510417699527735e+09);
INSERT INTO "leases" VALUES('shop',5,1,'c.w1.a1',2.79541510417598915096e+09);
CREATE TABLE misses (
    crawl  TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    batch  INTEGER NOT NULL,
    url    TEXT NOT NULL,
    kind   TEXT NOT NULL,
    reason TEXT NOT NULL
);
INSERT INTO "misses" VALUES('c',0,'http://x/gone','index','404');
INSERT INTO "misses" VALUES('c',1,'http://x/p','failed','timeout');
CREATE TABLE nodes (
    name        TEXT PRIMARY KEY,
    draining    REAL,
    start_delay REAL NOT NULL DEFAULT 0,
    idle_looks  TEXT NOT NULL DEFAULT '[]',
    url         TEXT NOT NULL DEFAULT ''
);
INSERT INTO "nodes" VALUES('web1',5.0,0.0,'[1.0, 2.0]','http://web1:6800');
CREATE TABLE pages (
    domain TEXT    NOT NULL REFERENCES throttle_domains (domain) ON DELETE CASCADE,
    budget TEXT    NOT NULL,
    used   INTEGER NOT NULL,
    PRIMARY KEY (domain, budget)
) WITHOUT ROWID;
INSERT INTO "pages" VALUES('a.com','c',3);
CREATE TABLE payloads (
    crawl    TEXT NOT NULL,
    batch    INTEGER NOT NULL,
    settings TEXT NOT NULL, fingerprints BLOB,
    PRIMARY KEY (crawl, batch),
    FOREIGN KEY (crawl, batch) REFERENCES batches (crawl, number) ON DELETE CASCADE
);
INSERT INTO "payloads" VALUES('c',1,'{"A": "1", "signature": "62e65eef.m8EoKn0omHEtlkXCMqsOEA"}',NULL);
INSERT INTO "payloads" VALUES('c',2,'{"A": "1", "signature": "62e65eef.m8EoKn0omHEtlkXCMqsOEA"}',NULL);
INSERT INTO "payloads" VALUES('c',3,'{"A": "1", "signature": "62e65eef.m8EoKn0omHEtlkXCMqsOEA"}',NULL);
INSERT INTO "payloads" VALUES('c',4,'{"A": "1", "signature": "62e65eef.m8EoKn0omHEtlkXCMqsOEA"}',NULL);
INSERT INTO "payloads" VALUES('c',5,'{"A": "1", "signature": "62e65eef.m8EoKn0omHEtlkXCMqsOEA"}',NULL);
INSERT INTO "payloads" VALUES('c',6,'{"A": "1", "signature": "62e65eef.m8EoKn0omHEtlkXCMqsOEA"}',NULL);
INSERT INTO "payloads" VALUES('c',7,'{"A": "1", "signature": "62e65eef.cVDBVmx7wl0yiTHAQs0Idw"}',NULL);
INSERT INTO "payloads" VALUES('c',8,'{"A": "2", "signature": "62e65eef.FhEwgWQsfai119ZKfLJtVg"}',NULL);
INSERT INTO "payloads" VALUES('shop',1,'{"A": "a,b", "signature": "62e65eef.YaUQ35i0tPnAerppynGG6Q"}',X'01610162');
INSERT INTO "payloads" VALUES('shop',2,'{"A": "d,e", "signature": "62e65eef.PdaydWzcTlmb1Qy_kF0LIQ"}',X'01640165');
INSERT INTO "payloads" VALUES('shop',3,'{"A": "f", "signature": "62e65eef.5zeSWEi_9oPxPTYB-9ynyw"}',X'0166');
INSERT INTO "payloads" VALUES('shop',4,'{"A": "g", "signature": "62e65eef.cV9N3REaHbUl-xf7Q_Uj0w"}',X'0167');
INSERT INTO "payloads" VALUES('shop',5,'{"A": "h", "signature": "62e65eef.ifmPGdMrvgxHOIs3Xho35A"}',X'0168');
INSERT INTO "payloads" VALUES('shop',6,'{"A": "i", "signature": "62e65eef.z6bXPkNxn587vk6SoB-HrQ"}',X'0169');
CREATE TABLE producers (
    crawl TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    name  TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (crawl, name)
) WITHOUT ROWID;
INSERT INTO "producers" VALUES('shop','filler',2.79541510415800523755e+09);
CREATE TABLE samples (
    crawl  TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    at     REAL NOT NULL,
    sample TEXT NOT NULL
);
INSERT INTO "samples" VALUES('c',3.0,'{"done": 1}');
CREATE TABLE seen (
    crawl       INTEGER NOT NULL REFERENCES crawls (number) ON DELETE CASCADE,
    fingerprint BLOB NOT NULL,
    PRIMARY KEY (crawl, fingerprint)
) WITHOUT ROWID;
INSERT INTO "seen" VALUES(1,X'302E30');
INSERT INTO "seen" VALUES(1,X'302E31');
INSERT INTO "seen" VALUES(1,X'302E3130');
INSERT INTO "seen" VALUES(1,X'302E3131');
INSERT INTO "seen" VALUES(1,X'302E3132');
INSERT INTO "seen" VALUES(1,X'302E3133');
INSERT INTO "seen" VALUES(1,X'302E3134');
INSERT INTO "seen" VALUES(1,X'302E3135');
INSERT INTO "seen" VALUES(1,X'302E3136');
INSERT INTO "seen" VALUES(1,X'302E3137');
INSERT INTO "seen" VALUES(1,X'302E3138');
INSERT INTO "seen" VALUES(1,X'302E3139');
INSERT INTO "seen" VALUES(1,X'302E32');
INSERT INTO "seen" VALUES(1,X'302E3230');
INSERT INTO "seen" VALUES(1,X'302E3231');
INSERT INTO "seen" VALUES(1,X'302E3232');
INSERT INTO "seen" VALUES(1,X'302E3233');
INSERT INTO "seen" VALUES(1,X'302E3234');
INSERT INTO "seen" VALUES(1,X'302E3235');
INSERT INTO "seen" VALUES(1,X'302E3236');
INSERT INTO "seen" VALUES(1,X'302E3237');
INSERT INTO "seen" VALUES(1,X'302E3238');
INSERT INTO "seen" VALUES(1,X'302E3239');
INSERT INTO "seen" VALUES(1,X'302E33');
INSERT INTO "seen" VALUES(1,X'302E3330');
INSERT INTO "seen" VALUES(1,X'302E3331');
INSERT INTO "seen" VALUES(1,X'302E3332');
INSERT INTO "seen" VALUES(1,X'302E3333');
INSERT INTO "seen" VALUES(1,X'302E3334');
INSERT INTO "seen" VALUES(1,X'302E3335');
INSERT INTO "seen" VALUES(1,X'302E3336');
INSERT INTO "seen" VALUES(1,X'302E3337');
INSERT INTO "seen" VALUES(1,X'302E3338');
INSERT INTO "seen" VALUES(1,X'302E3339');
INSERT INTO "seen" VALUES(1,X'302E34');
INSERT INTO "seen" VALUES(1,X'302E3430');
INSERT INTO "seen" VALUES(1,X'302E3431');
INSERT INTO "seen" VALUES(1,X'302E3432');
INSERT INTO "seen" VALUES(1,X'302E3433');
INSERT INTO "seen" VALUES(1,X'302E3434');
INSERT INTO "seen" VALUES(1,X'302E3435');
INSERT INTO "seen" VALUES(1,X'302E3436');
INSERT INTO "seen" VALUES(1,X'302E3437');
INSERT INTO "seen" VALUES(1,X'302E3438');
INSERT INTO "seen" VALUES(1,X'302E3439');
INSERT INTO "seen" VALUES(1,X'302E35');
INSERT INTO "seen" VALUES(1,X'302E3530');
INSERT INTO "seen" VALUES(1,X'302E3531');
INSERT INTO "seen" VALUES(1,X'302E3532');
INSERT INTO "seen" VALUES(1,X'302E3533');
INSERT INTO "seen" VALUES(1,X'302E3534');
INSERT INTO "seen" VALUES(1,X'302E3535');
INSERT INTO "seen" VALUES(1,X'302E3536');
INSERT INTO "seen" VALUES(1,X'302E3537');
INSERT INTO "seen" VALUES(1,X'302E3538');
INSERT INTO "seen" VALUES(1,X'302E3539');
INSERT INTO "seen" VALUES(1,X'302E36');
INSERT INTO "seen" VALUES(1,X'302E37');
INSERT INTO "seen" VALUES(1,X'302E38');
INSERT INTO "seen" VALUES(1,X'302E39');
INSERT INTO "seen" VALUES(1,X'312E30');
INSERT INTO "seen" VALUES(1,X'312E31');
INSERT INTO "seen" VALUES(1,X'312E3130');
INSERT INTO "seen" VALUES(1,X'312E3131');
INSERT INTO "seen" VALUES(1,X'312E3132');
INSERT INTO "seen" VALUES(1,X'312E3133');
INSERT INTO "seen" VALUES(1,X'312E3134');
INSERT INTO "seen" VALUES(1,X'312E3135');
INSERT INTO "seen" VALUES(1,X'312E3136');
INSERT INTO "seen" VALUES(1,X'312E3137');
INSERT INTO "seen" VALUES(1,X'312E3138');
INSERT INTO "seen" VALUES(1,X'312E3139');
INSERT INTO "seen" VALUES(1,X'312E32');
INSERT INTO "seen" VALUES(1,X'312E3230');
INSERT INTO "seen" VALUES(1,X'312E3231');
INSERT INTO "seen" VALUES(1,X'312E3232');
INSERT INTO "seen" VALUES(1,X'312E3233');
INSERT INTO "seen" VALUES(1,X'312E3234');
INSERT INTO "seen" VALUES(1,X'312E3235');
INSERT INTO "seen" VALUES(1,X'312E3236');
INSERT INTO "seen" VALUES(1,X'312E3237');
INSERT INTO "seen" VALUES(1,X'312E3238');
INSERT INTO "seen" VALUES(1,X'312E3239');
INSERT INTO "seen" VALUES(1,X'312E33');
INSERT INTO "seen" VALUES(1,X'312E3330');
INSERT INTO "seen" VALUES(1,X'312E3331');
INSERT INTO "seen" VALUES(1,X'312E3332');
INSERT INTO "seen" VALUES(1,X'312E3333');
INSERT INTO "seen" VALUES(1,X'312E3334');
INSERT INTO "seen" VALUES(1,X'312E3335');
INSERT INTO "seen" VALUES(1,X'312E3336');
INSERT INTO "seen" VALUES(1,X'312E3337');
INSERT INTO "seen" VALUES(1,X'312E3338');
INSERT INTO "seen" VALUES(1,X'312E3339');
INSERT INTO "seen" VALUES(1,X'312E34');
INSERT INTO "seen" VALUES(1,X'312E3430');
INSERT INTO "seen" VALUES(1,X'312E3431');
INSERT INTO "seen" VALUES(1,X'312E3432');
INSERT INTO "seen" VALUES(1,X'312E3433');
INSERT INTO "seen" VALUES(1,X'312E3434');
INSERT INTO "seen" VALUES(1,X'312E3435');
INSERT INTO "seen" VALUES(1,X'312E3436');
INSERT INTO "seen" VALUES(1,X'312E3437');
INSERT INTO "seen" VALUES(1,X'312E3438');
INSERT INTO "seen" VALUES(1,X'312E3439');
INSERT INTO "seen" VALUES(1,X'312E35');
INSERT INTO "seen" VALUES(1,X'312E3530');
INSERT INTO "seen" VALUES(1,X'312E3531');
INSERT INTO "seen" VALUES(1,X'312E3532');
INSERT INTO "seen" VALUES(1,X'312E3533');
INSERT INTO "seen" VALUES(1,X'312E3534');
INSERT INTO "seen" VALUES(1,X'312E3535');
INSERT INTO "seen" VALUES(1,X'312E3536');
INSERT INTO "seen" VALUES(1,X'312E3537');
INSERT INTO "seen" VALUES(1,X'312E3538');
INSERT INTO "seen" VALUES(1,X'312E3539');
INSERT INTO "seen" VALUES(1,X'312E36');
INSERT INTO "seen" VALUES(1,X'312E37');
INSERT INTO "seen" VALUES(1,X'312E38');
INSERT INTO "seen" VALUES(1,X'312E39');
INSERT INTO "seen" VALUES(1,X'322E30');
INSERT INTO "seen" VALUES(1,X'322E31');
INSERT INTO "seen" VALUES(1,X'322E3130');
INSERT INTO "seen" VALUES(1,X'322E3131');
INSERT INTO "seen" VALUES(1,X'322E3132');
INSERT INTO "seen" VALUES(1,X'322E3133');
INSERT INTO "seen" VALUES(1,X'322E3134');
INSERT INTO "seen" VALUES(1,X'322E3135');
INSERT INTO "seen" VALUES(1,X'322E3136');
INSERT INTO "seen" VALUES(1,X'322E3137');
INSERT INTO "seen" VALUES(1,X'322E3138');
INSERT INTO "seen" VALUES(1,X'322E3139');
INSERT INTO "seen" VALUES(1,X'322E32');
INSERT INTO "seen" VALUES(1,X'322E3230');
INSERT INTO "seen" VALUES(1,X'322E3231');
INSERT INTO "seen" VALUES(1,X'322E3232');
INSERT INTO "seen" VALUES(1,X'322E3233');
INSERT INTO "seen" VALUES(1,X'322E3234');
INSERT INTO "seen" VALUES(1,X'322E3235');
INSERT INTO "seen" VALUES(1,X'322E3236');
INSERT INTO "seen" VALUES(1,X'322E3237');
INSERT INTO "seen" VALUES(1,X'322E3238');
INSERT INTO "seen" VALUES(1,X'322E3239');
INSERT INTO "seen" VALUES(1,X'322E33');
INSERT INTO "seen" VALUES(1,X'322E3330');
INSERT INTO "seen" VALUES(1,X'322E3331');
INSERT INTO "seen" VALUES(1,X'322E3332');
INSERT INTO "seen" VALUES(1,X'322E3333');
INSERT INTO "seen" VALUES(1,X'322E3334');
INSERT INTO "seen" VALUES(1,X'322E3335');
INSERT INTO "seen" VALUES(1,X'322E3336');
INSERT INTO "seen" VALUES(1,X'322E3337');
INSERT INTO "seen" VALUES(1,X'322E3338');
INSERT INTO "seen" VALUES(1,X'322E3339');
INSERT INTO "seen" VALUES(1,X'322E34');
INSERT INTO "seen" VALUES(1,X'322E3430');
INSERT INTO "seen" VALUES(1,X'322E3431');
INSERT INTO "seen" VALUES(1,X'322E3432');
INSERT INTO "seen" VALUES(1,X'322E3433');
INSERT INTO "seen" VALUES(1,X'322E3434');
INSERT INTO "seen" VALUES(1,X'322E3435');
INSERT INTO "seen" VALUES(1,X'322E3436');
INSERT INTO "seen" VALUES(1,X'322E3437');
INSERT INTO "seen" VALUES(1,X'322E3438');
INSERT INTO "seen" VALUES(1,X'322E3439');
INSERT INTO "seen" VALUES(1,X'322E35');
INSERT INTO "seen" VALUES(1,X'322E3530');
INSERT INTO "seen" VALUES(1,X'322E3531');
INSERT INTO "seen" VALUES(1,X'322E3532');
INSERT INTO "seen" VALUES(1,X'322E3533');
INSERT INTO "seen" VALUES(1,X'322E3534');
INSERT INTO "seen" VALUES(1,X'322E3535');
INSERT INTO "seen" VALUES(1,X'322E3536');
INSERT INTO "seen" VALUES(1,X'322E3537');
INSERT INTO "seen" VALUES(1,X'322E3538');
INSERT INTO "seen" VALUES(1,X'322E3539');
INSERT INTO "seen" VALUES(1,X'322E36');
INSERT INTO "seen" VALUES(1,X'322E37');
INSERT INTO "seen" VALUES(1,X'322E38');
INSERT INTO "seen" VALUES(1,X'322E39');
INSERT INTO "seen" VALUES(1,X'332E30');
INSERT INTO "seen" VALUES(1,X'332E31');
INSERT INTO "seen" VALUES(1,X'332E3130');
INSERT INTO "seen" VALUES(1,X'332E3131');
INSERT INTO "seen" VALUES(1,X'332E3132');
INSERT INTO "seen" VALUES(1,X'332E3133');
INSERT INTO "seen" VALUES(1,X'332E3134');
INSERT INTO "seen" VALUES(1,X'332E3135');
INSERT INTO "seen" VALUES(1,X'332E3136');
INSERT INTO "seen" VALUES(1,X'332E3137');
INSERT INTO "seen" VALUES(1,X'332E3138');
INSERT INTO "seen" VALUES(1,X'332E3139');
INSERT INTO "seen" VALUES(1,X'332E32');
INSERT INTO "seen" VALUES(1,X'332E3230');
INSERT INTO "seen" VALUES(1,X'332E3231');
INSERT INTO "seen" VALUES(1,X'332E3232');
INSERT INTO "seen" VALUES(1,X'332E3233');
INSERT INTO "seen" VALUES(1,X'332E3234');
INSERT INTO "seen" VALUES(1,X'332E3235');
INSERT INTO "seen" VALUES(1,X'332E3236');
INSERT INTO "seen" VALUES(1,X'332E3237');
INSERT INTO "seen" VALUES(1,X'332E3238');
INSERT INTO "seen" VALUES(1,X'332E3239');
INSERT INTO "seen" VALUES(1,X'332E33');
INSERT INTO "seen" VALUES(1,X'332E3330');
INSERT INTO "seen" VALUES(1,X'332E3331');
INSERT INTO "seen" VALUES(1,X'332E3332');
INSERT INTO "seen" VALUES(1,X'332E3333');
INSERT INTO "seen" VALUES(1,X'332E3334');
INSERT INTO "seen" VALUES(1,X'332E3335');
INSERT INTO "seen" VALUES(1,X'332E3336');
INSERT INTO "seen" VALUES(1,X'332E3337');
INSERT INTO "seen" VALUES(1,X'332E3338');
INSERT INTO "seen" VALUES(1,X'332E3339');
INSERT INTO "seen" VALUES(1,X'332E34');
INSERT INTO "seen" VALUES(1,X'332E3430');
INSERT INTO "seen" VALUES(1,X'332E3431');
INSERT INTO "seen" VALUES(1,X'332E3432');
INSERT INTO "seen" VALUES(1,X'332E3433');
INSERT INTO "seen" VALUES(1,X'332E3434');
INSERT INTO "seen" VALUES(1,X'332E3435');
INSERT INTO "seen" VALUES(1,X'332E3436');
INSERT INTO "seen" VALUES(1,X'332E3437');
INSERT INTO "seen" VALUES(1,X'332E3438');
INSERT INTO "seen" VALUES(1,X'332E3439');
INSERT INTO "seen" VALUES(1,X'332E35');
INSERT INTO "seen" VALUES(1,X'332E3530');
INSERT INTO "seen" VALUES(1,X'332E3531');
INSERT INTO "seen" VALUES(1,X'332E3532');
INSERT INTO "seen" VALUES(1,X'332E3533');
INSERT INTO "seen" VALUES(1,X'332E3534');
INSERT INTO "seen" VALUES(1,X'332E3535');
INSERT INTO "seen" VALUES(1,X'332E3536');
INSERT INTO "seen" VALUES(1,X'332E3537');
INSERT INTO "seen" VALUES(1,X'332E3538');
INSERT INTO "seen" VALUES(1,X'332E3539');
INSERT INTO "seen" VALUES(1,X'332E36');
INSERT INTO "seen" VALUES(1,X'332E37');
INSERT INTO "seen" VALUES(1,X'332E38');
INSERT INTO "seen" VALUES(1,X'332E39');
INSERT INTO "seen" VALUES(1,X'342E30');
INSERT INTO "seen" VALUES(1,X'342E31');
INSERT INTO "seen" VALUES(1,X'342E3130');
INSERT INTO "seen" VALUES(1,X'342E3131');
INSERT INTO "seen" VALUES(1,X'342E3132');
INSERT INTO "seen" VALUES(1,X'342E3133');
INSERT INTO "seen" VALUES(1,X'342E3134');
INSERT INTO "seen" VALUES(1,X'342E3135');
INSERT INTO "seen" VALUES(1,X'342E3136');
INSERT INTO "seen" VALUES(1,X'342E3137');
INSERT INTO "seen" VALUES(1,X'342E3138');
INSERT INTO "seen" VALUES(1,X'342E3139');
INSERT INTO "seen" VALUES(1,X'342E32');
INSERT INTO "seen" VALUES(1,X'342E3230');
INSERT INTO "seen" VALUES(1,X'342E3231');
INSERT INTO "seen" VALUES(1,X'342E3232');
INSERT INTO "seen" VALUES(1,X'342E3233');
INSERT INTO "seen" VALUES(1,X'342E3234');
INSERT INTO "seen" VALUES(1,X'342E3235');
INSERT INTO "seen" VALUES(1,X'342E3236');
INSERT INTO "seen" VALUES(1,X'342E3237');
INSERT INTO "seen" VALUES(1,X'342E3238');
INSERT INTO "seen" VALUES(1,X'342E3239');
INSERT INTO "seen" VALUES(1,X'342E33');
INSERT INTO "seen" VALUES(1,X'342E3330');
INSERT INTO "seen" VALUES(1,X'342E3331');
INSERT INTO "seen" VALUES(1,X'342E3332');
INSERT INTO "seen" VALUES(1,X'342E3333');
INSERT INTO "seen" VALUES(1,X'342E3334');
INSERT INTO "seen" VALUES(1,X'342E3335');
INSERT INTO "seen" VALUES(1,X'342E3336');
INSERT INTO "seen" VALUES(1,X'342E3337');
INSERT INTO "seen" VALUES(1,X'342E3338');
INSERT INTO "seen" VALUES(1,X'342E3339');
INSERT INTO "seen" VALUES(1,X'342E34');
INSERT INTO "seen" VALUES(1,X'342E3430');
INSERT INTO "seen" VALUES(1,X'342E3431');
INSERT INTO "seen" VALUES(1,X'342E3432');
INSERT INTO "seen" VALUES(1,X'342E3433');
INSERT INTO "seen" VALUES(1,X'342E3434');
INSERT INTO "seen" VALUES(1,X'342E3435');
INSERT INTO "seen" VALUES(1,X'342E3436');
INSERT INTO "seen" VALUES(1,X'342E3437');
INSERT INTO "seen" VALUES(1,X'342E3438');
INSERT INTO "seen" VALUES(1,X'342E3439');
INSERT INTO "seen" VALUES(1,X'342E35');
INSERT INTO "seen" VALUES(1,X'342E3530');
INSERT INTO "seen" VALUES(1,X'342E3531');
INSERT INTO "seen" VALUES(1,X'342E3532');
INSERT INTO "seen" VALUES(1,X'342E3533');
INSERT INTO "seen" VALUES(1,X'342E3534');
INSERT INTO "seen" VALUES(1,X'342E3535');
INSERT INTO "seen" VALUES(1,X'342E3536');
INSERT INTO "seen" VALUES(1,X'342E3537');
INSERT INTO "seen" VALUES(1,X'342E3538');
INSERT INTO "seen" VALUES(1,X'342E3539');
INSERT INTO "seen" VALUES(1,X'342E36');
INSERT INTO "seen" VALUES(1,X'342E37');
INSERT INTO "seen" VALUES(1,X'342E38');
INSERT INTO "seen" VALUES(1,X'342E39');
INSERT INTO "seen" VALUES(1,X'352E30');
INSERT INTO "seen" VALUES(1,X'352E31');
INSERT INTO "seen" VALUES(1,X'352E3130');
INSERT INTO "seen" VALUES(1,X'352E3131');
INSERT INTO "seen" VALUES(1,X'352E3132');
INSERT INTO "seen" VALUES(1,X'352E3133');
INSERT INTO "seen" VALUES(1,X'352E3134');
INSERT INTO "seen" VALUES(1,X'352E3135');
INSERT INTO "seen" VALUES(1,X'352E3136');
INSERT INTO "seen" VALUES(1,X'352E3137');
INSERT INTO "seen" VALUES(1,X'352E3138');
INSERT INTO "seen" VALUES(1,X'352E3139');
INSERT INTO "seen" VALUES(1,X'352E32');
INSERT INTO "seen" VALUES(1,X'352E3230');
INSERT INTO "seen" VALUES(1,X'352E3231');
INSERT INTO "seen" VALUES(1,X'352E3232');
INSERT INTO "seen" VALUES(1,X'352E3233');
INSERT INTO "seen" VALUES(1,X'352E3234');
INSERT INTO "seen" VALUES(1,X'352E3235');
INSERT INTO "seen" VALUES(1,X'352E3236');
INSERT INTO "seen" VALUES(1,X'352E3237');
INSERT INTO "seen" VALUES(1,X'352E3238');
INSERT INTO "seen" VALUES(1,X'352E3239');
INSERT INTO "seen" VALUES(1,X'352E33');
INSERT INTO "seen" VALUES(1,X'352E3330');
INSERT INTO "seen" VALUES(1,X'352E3331');
INSERT INTO "seen" VALUES(1,X'352E3332');
INSERT INTO "seen" VALUES(1,X'352E3333');
INSERT INTO "seen" VALUES(1,X'352E3334');
INSERT INTO "seen" VALUES(1,X'352E3335');
INSERT INTO "seen" VALUES(1,X'352E3336');
INSERT INTO "seen" VALUES(1,X'352E3337');
INSERT INTO "seen" VALUES(1,X'352E3338');
INSERT INTO "seen" VALUES(1,X'352E3339');
INSERT INTO "seen" VALUES(1,X'352E34');
INSERT INTO "seen" VALUES(1,X'352E3430');
INSERT INTO "seen" VALUES(1,X'352E3431');
INSERT INTO "seen" VALUES(1,X'352E3432');
INSERT INTO "seen" VALUES(1,X'352E3433');
INSERT INTO "seen" VALUES(1,X'352E3434');
INSERT INTO "seen" VALUES(1,X'352E3435');
INSERT INTO "seen" VALUES(1,X'352E3436');
INSERT INTO "seen" VALUES(1,X'352E3437');
INSERT INTO "seen" VALUES(1,X'352E3438');
INSERT INTO "seen" VALUES(1,X'352E3439');
INSERT INTO "seen" VALUES(1,X'352E35');
INSERT INTO "seen" VALUES(1,X'352E3530');
INSERT INTO "seen" VALUES(1,X'352E3531');
INSERT INTO "seen" VALUES(1,X'352E3532');
INSERT INTO "seen" VALUES(1,X'352E3533');
INSERT INTO "seen" VALUES(1,X'352E3534');
INSERT INTO "seen" VALUES(1,X'352E3535');
INSERT INTO "seen" VALUES(1,X'352E3536');
INSERT INTO "seen" VALUES(1,X'352E3537');
INSERT INTO "seen" VALUES(1,X'352E3538');
INSERT INTO "seen" VALUES(1,X'352E3539');
INSERT INTO "seen" VALUES(1,X'352E36');
INSERT INTO "seen" VALUES(1,X'352E37');
INSERT INTO "seen" VALUES(1,X'352E38');
INSERT INTO "seen" VALUES(1,X'352E39');
INSERT INTO "seen" VALUES(2,X'61');
INSERT INTO "seen" VALUES(2,X'62');
INSERT INTO "seen" VALUES(2,X'64');
INSERT INTO "seen" VALUES(2,X'65');
INSERT INTO "seen" VALUES(2,X'66');
INSERT INTO "seen" VALUES(2,X'67');
INSERT INTO "seen" VALUES(2,X'68');
INSERT INTO "seen" VALUES(2,X'69');
CREATE TABLE shards (
    crawl      TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    number     INTEGER NOT NULL,
    url        TEXT NOT NULL,
    first_page INTEGER,
    last_page  INTEGER,
    state      TEXT NOT NULL,
    PRIMARY KEY (crawl, number)
) WITHOUT ROWID;
INSERT INTO "shards" VALUES('c',1,'http://x/1',NULL,NULL,'finished');
INSERT INTO "shards" VALUES('c',2,'http://x/2',NULL,NULL,'open');
CREATE TABLE slot_counts (
    crawl    TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    slot     TEXT NOT NULL,
    state    TEXT NOT NULL,
    batches  INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    PRIMARY KEY (crawl, slot, state)
) WITHOUT ROWID;
INSERT INTO "slot_counts" VALUES('c','','dead',1,2);
INSERT INTO "slot_counts" VALUES('c','','done',1,2);
INSERT INTO "slot_counts" VALUES('c','','failed',1,2);
INSERT INTO "slot_counts" VALUES('c','','running',1,2);
INSERT INTO "slot_counts" VALUES('c','','sealed',3,4);
INSERT INTO "slot_counts" VALUES('c','','sent',0,0);
INSERT INTO "slot_counts" VALUES('c','','split',1,2);
INSERT INTO "slot_counts" VALUES('shop','','running',1,1);
INSERT INTO "slot_counts" VALUES('shop','','sealed',0,0);
INSERT INTO "slot_counts" VALUES('shop','w','sealed',1,1);
INSERT INTO "slot_counts" VALUES('shop','x','running',1,2);
INSERT INTO "slot_counts" VALUES('shop','x','sealed',0,0);
INSERT INTO "slot_counts" VALUES('shop','y','running',1,2);
INSERT INTO "slot_counts" VALUES('shop','y','sealed',1,1);
INSERT INTO "slot_counts" VALUES('shop','z','sealed',1,1);
CREATE TABLE slot_turns (
    crawl   TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    slot    TEXT NOT NULL,
    waiting INTEGER NOT NULL DEFAULT 0,  -- batches
    out     INTEGER NOT NULL DEFAULT 0,  -- requests of batches that workers have
    turn    INTEGER NOT NULL DEFAULT 0,  -- when it was last leased from, counted in leases
    holder  TEXT NOT NULL DEFAULT '',    -- the worker that has it to itself, while it has something of it
    PRIMARY KEY (crawl, slot)
) WITHOUT ROWID;
INSERT INTO "slot_turns" VALUES('shop','',0,1,2,'c.w1.a1');
INSERT INTO "slot_turns" VALUES('shop','w',1,0,0,'');
INSERT INTO "slot_turns" VALUES('shop','x',0,2,3,'c.w1.a1');
INSERT INTO "slot_turns" VALUES('shop','y',1,0,4,'');
INSERT INTO "slot_turns" VALUES('shop','z',1,0,0,'');
CREATE TABLE throttle (version INTEGER NOT NULL);
INSERT INTO "throttle" VALUES(2);
CREATE TABLE throttle_changes (
    version INTEGER NOT NULL,
    domain  TEXT    NOT NULL,
    PRIMARY KEY (version, domain)
) WITHOUT ROWID;
INSERT INTO "throttle_changes" VALUES(1,'a.com');
INSERT INTO "throttle_changes" VALUES(2,'a.com');
CREATE TABLE throttle_domains (
    domain     TEXT PRIMARY KEY,
    asked      INTEGER NOT NULL DEFAULT 0,
    rest_until INTEGER NOT NULL DEFAULT 0,
    pace       REAL    NOT NULL DEFAULT 1,
    slowed_at  INTEGER NOT NULL DEFAULT 0,
    delay      INTEGER NOT NULL DEFAULT 0,
    delayed_at INTEGER NOT NULL DEFAULT 0,
    gap        INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO "throttle_domains" VALUES('a.com',1795415104234018,0,1.0,0,30000000,1795415104238249,0);
CREATE TABLE throttle_keys (
    number INTEGER PRIMARY KEY,
    key    TEXT    NOT NULL UNIQUE,
    domain TEXT    NOT NULL REFERENCES throttle_domains (domain) ON DELETE CASCADE,
    full   INTEGER NOT NULL DEFAULT 0,
    seen   INTEGER NOT NULL DEFAULT 0,
    hits   INTEGER NOT NULL,
    window INTEGER NOT NULL,
    gap    INTEGER NOT NULL,
    apart  INTEGER NOT NULL
);
INSERT INTO "throttle_keys" VALUES(1,'a.com','a.com',1795415116234018,1795415104234018,0,60000000,6000000,0);
CREATE TABLE throttle_rules (
    domain TEXT PRIMARY KEY,
    rule   TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "throttle_rules" VALUES('a.com','{"blocked": false, "hits": 10, "paused": false, "scale": 1.0, "window": 60.0}');
CREATE UNIQUE INDEX one_accepted ON attempts (crawl, batch) WHERE state = 'accepted';
CREATE INDEX misses_of_crawl ON misses (crawl);
CREATE UNIQUE INDEX crawl_numbers ON crawls (number);
CREATE INDEX samples_of_crawl ON samples (crawl, at);
CREATE INDEX waiting_batches ON batches (crawl, slot, priority DESC, number) WHERE state IN ('sealed', 'failed');
CREATE INDEX attempts_by_state ON attempts (crawl, state);
CREATE TRIGGER batch_comes AFTER INSERT ON batches BEGIN
    INSERT INTO slot_counts VALUES (new.crawl, new.slot, new.state, 1, new.size)
        ON CONFLICT (crawl, slot, state) DO UPDATE SET batches = batches + 1, requests = requests + excluded.requests;
END;
CREATE TRIGGER batch_moves AFTER UPDATE OF state ON batches WHEN new.state != old.state BEGIN
    UPDATE slot_counts SET batches = batches - 1, requests = requests - old.size
        WHERE crawl = old.crawl AND slot = old.slot AND state = old.state;
    INSERT INTO slot_counts VALUES (new.crawl, new.slot, new.state, 1, new.size)
        ON CONFLICT (crawl, slot, state) DO UPDATE SET batches = batches + 1, requests = requests + excluded.requests;
END;
CREATE TRIGGER batch_goes AFTER DELETE ON batches BEGIN
    UPDATE slot_counts SET batches = batches - 1, requests = requests - old.size
        WHERE crawl = old.crawl AND slot = old.slot AND state = old.state;
END;
CREATE INDEX throttle_keys_of_domain ON throttle_keys (domain);
CREATE INDEX next_turns ON slot_turns (crawl, holder, out, turn, slot) WHERE waiting > 0 AND substr(slot, 1, 1) != '@';
CREATE INDEX held_slots ON slot_turns (crawl, holder) WHERE holder != '';
CREATE TRIGGER turn_comes AFTER INSERT ON batches
WHEN new.state IN ('sealed', 'failed') AND (SELECT turns FROM crawls WHERE id = new.crawl) > 0 BEGIN
    INSERT INTO slot_turns (crawl, slot, waiting) VALUES (new.crawl, new.slot, 1)
        ON CONFLICT (crawl, slot) DO UPDATE SET waiting = waiting + 1;
END;
CREATE TRIGGER turn_moves AFTER UPDATE OF state ON batches
WHEN (new.state IN ('sealed', 'failed')) != (old.state IN ('sealed', 'failed'))
    AND (SELECT turns FROM crawls WHERE id = new.crawl) > 0 BEGIN
    INSERT INTO slot_turns (crawl, slot) VALUES (new.crawl, new.slot) ON CONFLICT (crawl, slot) DO NOTHING;
    UPDATE slot_turns SET waiting = waiting + CASE WHEN new.state IN ('sealed', 'failed') THEN 1 ELSE -1 END
        WHERE crawl = new.crawl AND slot = new.slot;
END;
CREATE TRIGGER turn_goes AFTER DELETE ON batches
WHEN old.state IN ('sealed', 'failed') AND (SELECT turns FROM crawls WHERE id = old.crawl) > 0 BEGIN
    UPDATE slot_turns SET waiting = waiting - 1 WHERE crawl = old.crawl AND slot = old.slot;
END;
CREATE TRIGGER attempt_begins AFTER INSERT ON attempts
WHEN new.state IN ('sending', 'sent', 'running') AND (SELECT turns FROM crawls WHERE id = new.crawl) > 0 BEGIN
    UPDATE slot_turns SET out = out + (SELECT size FROM batches WHERE crawl = new.crawl AND number = new.batch)
        WHERE crawl = new.crawl AND slot = (SELECT slot FROM batches WHERE crawl = new.crawl AND number = new.batch);
END;
CREATE TRIGGER attempt_begins_again AFTER UPDATE OF state ON attempts
WHEN new.state IN ('sending', 'sent', 'running') AND old.state NOT IN ('sending', 'sent', 'running')
    AND (SELECT turns FROM crawls WHERE id = new.crawl) > 0 BEGIN
    UPDATE slot_turns SET out = out + (SELECT size FROM batches WHERE crawl = new.crawl AND number = new.batch)
        WHERE crawl = new.crawl AND slot = (SELECT slot FROM batches WHERE crawl = new.crawl AND number = new.batch);
END;
CREATE TRIGGER attempt_ends AFTER UPDATE OF state ON attempts
WHEN old.state IN ('sending', 'sent', 'running') AND new.state NOT IN ('sending', 'sent', 'running')
    AND (SELECT turns FROM crawls WHERE id = new.crawl) > 0 BEGIN
    UPDATE slot_turns SET out = out - (SELECT size FROM batches WHERE crawl = new.crawl AND number = new.batch)
        WHERE crawl = new.crawl AND slot = (SELECT slot FROM batches WHERE crawl = new.crawl AND number = new.batch);
    UPDATE slot_turns SET holder = ''
        WHERE crawl = new.crawl AND slot = (SELECT slot FROM batches WHERE crawl = new.crawl AND number = new.batch)
        AND out <= 0 AND holder != '';
END;
COMMIT;
