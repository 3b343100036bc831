//! What the outside meets in schema `work`: functions with their arguments and callers, tables, columns and rights. A change shows here first.

use std::path::Path;

use crate::support::World;

const FUNCTIONS: &str = "
    select format('function work.%s(%s) returns %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid))
           || coalesce(': ' || (select string_agg(replace(r.rolname, 'monalisa_', ''), ', ' order by r.rolname)
                                  from aclexplode(p.proacl) a join pg_roles r on r.oid = a.grantee
                                 where r.rolname like 'monalisa_%' and r.rolname <> 'monalisa_owner'), '')
      from pg_proc p
     where p.pronamespace = 'work'::regnamespace
       and exists (select from aclexplode(p.proacl) a join pg_roles r on r.oid = a.grantee
                    where r.rolname like 'monalisa_%' and r.rolname <> 'monalisa_owner')
     order by p.proname";

const TABLES: &str = "
    select format('%s work.%s (%s)', case c.relkind when 'v' then 'view' else 'table' end, c.relname, (select string_agg(format('%s %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum)
                                                      from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped))
           || coalesce(': ' || (select string_agg(format('%s %s', role, rights), ', ' order by role)
                                  from (select replace(r.rolname, 'monalisa_', '') as role, string_agg(lower(a.privilege_type), '+' order by a.privilege_type) as rights
                                          from aclexplode(c.relacl) a join pg_roles r on r.oid = a.grantee
                                         where r.rolname like 'monalisa_%' and r.rolname <> 'monalisa_owner' group by 1) g), '')
           || coalesce(' · ' || (select string_agg(format('%s reads %s', role, names), '; ' order by role)
                                  from (select replace(r.rolname, 'monalisa_', '') as role, string_agg(t.attname, ' ' order by t.attnum) as names
                                          from pg_attribute t, aclexplode(t.attacl) a join pg_roles r on r.oid = a.grantee
                                         where t.attrelid = c.oid and t.attnum > 0 and r.rolname like 'monalisa_%' group by 1) g), '')
      from pg_class c
     where c.relnamespace = 'work'::regnamespace and c.relkind in ('r', 'v', 'p')
     order by c.relname";

#[tokio::test]
async fn the_sql_surface_is_the_one_that_was_agreed() {
    let world = World::without_queues().await;
    let mut found = String::new();
    for sql in [FUNCTIONS, TABLES] {
        for row in world.db.query(sql, &[]).await.unwrap() {
            found += row.get::<_, &str>(0);
            found.push('\n');
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/sql_surface.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let agreed = std::fs::read_to_string(&path).unwrap();
    let changes: Vec<String> = agreed
        .lines()
        .filter(|line| !found.lines().any(|other| other == *line))
        .map(|line| format!("- {line}"))
        .chain(found.lines().filter(|line| !agreed.lines().any(|other| other == *line)).map(|line| format!("+ {line}")))
        .collect();
    assert!(
        changes.is_empty(),
        "callers may depend on it; if it is meant, run this test with UPDATE=1 and commit tests/it/sql_surface.txt:\n{}",
        changes.join("\n")
    );
}
