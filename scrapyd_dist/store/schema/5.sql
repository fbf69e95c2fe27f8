-- Version 5: fair leasing: slots take turns.

-- The last turn that was given in this crawl; 0 where nobody has asked for turns, and none are kept.
ALTER TABLE crawls ADD COLUMN turns INTEGER NOT NULL DEFAULT 0;

CREATE TABLE slot_turns (
    crawl   TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    slot    TEXT NOT NULL,
    waiting INTEGER NOT NULL DEFAULT 0,  -- batches
    out     INTEGER NOT NULL DEFAULT 0,  -- requests of batches that workers have
    turn    INTEGER NOT NULL DEFAULT 0,  -- when it was last leased from, counted in leases
    holder  TEXT NOT NULL DEFAULT '',    -- the worker that has it to itself, while it has something of it
    PRIMARY KEY (crawl, slot)
) WITHOUT ROWID;

-- Whose turn it is, among those of nobody and those of one holder. Slots of other spiders are leased by name only.
CREATE INDEX next_turns ON slot_turns (crawl, holder, out, turn, slot) WHERE waiting > 0 AND substr(slot, 1, 1) != '@';
CREATE INDEX held_slots ON slot_turns (crawl, holder) WHERE holder != '';

-- Workers that found all slots taken.
CREATE TABLE hungry (
    crawl  TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    worker TEXT NOT NULL,
    at     REAL NOT NULL,
    PRIMARY KEY (crawl, worker)
) WITHOUT ROWID;

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
