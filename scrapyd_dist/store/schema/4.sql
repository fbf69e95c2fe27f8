-- Version 4: the throttle. Moments and spans are whole microseconds.

-- One row: higher after each change of the rules, and when a domain is slowed down.
CREATE TABLE throttle (version INTEGER NOT NULL);
INSERT INTO throttle VALUES (0);

-- JSON.
CREATE TABLE throttle_rules (
    domain TEXT PRIMARY KEY,
    rule   TEXT NOT NULL
) WITHOUT ROWID;

-- What is known of a domain; `asked` is brought up to date now and then only.
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

-- A key's terms; and, as it was at the moment `seen`, the one before which they have no room left.
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

CREATE INDEX throttle_keys_of_domain ON throttle_keys (domain);

CREATE TABLE grants (
    key INTEGER NOT NULL REFERENCES throttle_keys (number) ON DELETE CASCADE,
    at  INTEGER NOT NULL,
    PRIMARY KEY (key, at)
) WITHOUT ROWID;

CREATE TABLE pages (
    domain TEXT    NOT NULL REFERENCES throttle_domains (domain) ON DELETE CASCADE,
    budget TEXT    NOT NULL,
    used   INTEGER NOT NULL,
    PRIMARY KEY (domain, budget)
) WITHOUT ROWID;
