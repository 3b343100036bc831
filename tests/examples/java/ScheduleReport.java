import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

/** Schedules work from Java, in a transaction of your own. At run time it needs the JDBC driver of PostgreSQL. */
public final class ScheduleReport {
    /** This report was asked for in another format: an API answers with 409. */
    static final class AlreadyAskedFor extends Exception {
        private static final long serialVersionUID = 1L;

        AlreadyAskedFor(SQLException cause) {
            super(cause);
        }
    }

    /** The report and its work, in the caller's transaction: both or neither. */
    static String scheduleReport(Connection db, long tenantId, long reportId, String format) throws SQLException {
        try (PreparedStatement tenant = db.prepareStatement("select set_config('app.tenant_id', ?, true)")) {
            tenant.setString(1, Long.toString(tenantId));
            tenant.execute();
        }
        String insert = "insert into reports (id, format) values (?, ?) on conflict (id) do nothing";
        try (PreparedStatement report = db.prepareStatement(insert)) {
            report.setLong(1, reportId);
            report.setString(2, format);
            report.executeUpdate();
        }
        String dispatch = "select work.dispatch('reports.export', jsonb_build_object('report_id', ?, 'format', ?), idempotency_key => ?)";
        try (PreparedStatement work = db.prepareStatement(dispatch)) {
            work.setLong(1, reportId);
            work.setString(2, format);
            work.setString(3, "report-" + reportId);
            try (ResultSet rows = work.executeQuery()) {
                rows.next();
                return rows.getString(1);
            }
        }
    }

    /** The use case: one transaction, then the wake. */
    static String requestReport(Connection db, Runnable wake, long tenantId, long reportId, String format)
            throws SQLException, AlreadyAskedFor {
        String runId;
        db.setAutoCommit(false);
        try {
            runId = scheduleReport(db, tenantId, reportId, format);
            db.commit();
        } catch (SQLException error) {
            db.rollback();
            if ("ML008".equals(error.getSQLState())) { // IDEMPOTENCY_CONFLICT
                throw new AlreadyAskedFor(error);
            }
            throw error;
        }
        wake.run();
        return runId;
    }

    /** Wakes the relay after a commit. It never fails. Your client of Valkey does the same by a pipeline; this needs none. */
    static void wake(String host, int port) {
        try (Socket valkey = new Socket()) {
            valkey.connect(new InetSocketAddress(host, port), 1000);
            valkey.setSoTimeout(1000);
            String push = "LPUSH monalisa:outbox:wake 1\r\nLTRIM monalisa:outbox:wake 0 15\r\n";
            valkey.getOutputStream().write(push.getBytes(StandardCharsets.US_ASCII));
            valkey.getInputStream().read();
        } catch (java.io.IOException lost) {
            // Without it the work waits for the next sweep.
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection db = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            System.out.println("scheduled " + requestReport(db, () -> wake("localhost", 6379), 1, 7, "pdf"));
        }
    }

    private ScheduleReport() {}
}
