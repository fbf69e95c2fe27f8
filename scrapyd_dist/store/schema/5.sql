-- Version 5: fair leasing: slots that have as little under way take turns.

CREATE TABLE slot_turns (
    crawl TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    slot  TEXT NOT NULL,
    turn  INTEGER NOT NULL,
    PRIMARY KEY (crawl, slot)
) WITHOUT ROWID;
