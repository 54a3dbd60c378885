-- Who may do what in Postgres. Run it once as a superuser in Spotscribe's database, after the first `spotscribe db
-- upgrade`. Tables of later versions belong to who migrates: do that as a member of spotscribe_owner, after
-- `ALTER ROLE migrator SET role = spotscribe_owner`, and workers have their rights on them by default privileges.
--
--   owner    migrates (`spotscribe db upgrade`): owns all tables
--   worker   workers, submitters and ingesters: reads and writes rows, changes no table
--   analyst  reads the views (docs/schema.md) and searches; sees no table, and nothing that names a receiver
--
-- Then, for each login:  CREATE ROLE gpu_fleet LOGIN PASSWORD '…' IN ROLE spotscribe_worker;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['spotscribe_owner', 'spotscribe_worker', 'spotscribe_analyst'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
    END LOOP;
    FOR name IN
        SELECT format(
            'ALTER %s %I OWNER TO spotscribe_owner',
            CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, relname
        )
        FROM pg_class AS c
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'S', 'v')
            -- a column's own sequence goes with its table
            AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = c.oid AND deptype IN ('a', 'i') AND relkind = 'S')
    LOOP
        EXECUTE name;
    END LOOP;
    FOR name IN
        SELECT format('ALTER FUNCTION %s OWNER TO spotscribe_owner', oid::regprocedure) FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace AND proname IN ('search_config', 'search_segments')
    LOOP
        EXECUTE name;
    END LOOP;
END $$;

REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO spotscribe_owner;
GRANT USAGE ON SCHEMA public TO spotscribe_worker, spotscribe_analyst;

GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO spotscribe_worker;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO spotscribe_worker;
ALTER DEFAULT PRIVILEGES FOR ROLE spotscribe_owner IN SCHEMA public
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO spotscribe_worker;
ALTER DEFAULT PRIVILEGES FOR ROLE spotscribe_owner IN SCHEMA public
    GRANT USAGE, SELECT ON SEQUENCES TO spotscribe_worker;

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM spotscribe_analyst;
GRANT SELECT ON jobs_v, transcripts_v, segments_v, words_v, coverage_v, failures_v, quality_v, daily_usage_v
    TO spotscribe_analyst;
GRANT EXECUTE ON FUNCTION search_segments TO spotscribe_analyst, spotscribe_worker;
