-- Who may do what in Postgres. Run it once as a superuser in Spotscribe's database, after the first `spotscribe db
-- upgrade`. Tables of later versions belong to who migrates: do that as a member of spotscribe_owner, after
-- `ALTER ROLE migrator SET role = spotscribe_owner`, and workers have their rights on them by default privileges.
--
--   owner    migrates (`spotscribe db upgrade`): owns all tables
--   worker   workers, submitters and ingesters: reads and writes rows, changes no table
--   analyst  reads transcripts, segments, coverage, jobs and recordings; nothing that names a receiver or a secret
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
            'ALTER %s %I OWNER TO spotscribe_owner', CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, relname
        )
        FROM pg_class AS c
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'S')
            -- a column's own sequence goes with its table
            AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = c.oid AND deptype IN ('a', 'i') AND relkind = 'S')
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

GRANT SELECT ON recordings, jobs, labels, transcripts, segments, coverage TO spotscribe_analyst;
