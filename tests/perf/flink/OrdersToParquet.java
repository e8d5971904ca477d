import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/**
 * Flink's part of flink_figures.py: Kafka to Parquet, exactly once. For each line of the standard input, which names a
 * folder, it reads the whole topic into files there, and then says so.
 */
public class OrdersToParquet {
    private static final String COLUMNS =
            "order_id BIGINT, customer STRING, amount DOUBLE, ts TIMESTAMP_LTZ(3), topic STRING%s, `partition` INT%s, `offset` BIGINT%s";

    public static void main(String[] args) throws Exception {
        BufferedReader folders = new BufferedReader(new InputStreamReader(System.in));
        for (String folder = folders.readLine(); folder != null; folder = folders.readLine()) {
            run(args[0], args[1], folder);
            System.out.println("done");
        }
    }

    private static void run(String servers, String topic, String folder) throws Exception {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2);
        env.enableCheckpointing(10_000);
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        tables.executeSql("CREATE TABLE orders (" + COLUMNS.replace("%s", " METADATA") + ") WITH ("
                + "'connector' = 'kafka', 'topic' = '" + topic + "', 'properties.bootstrap.servers' = '" + servers + "', "
                + "'properties.isolation.level' = 'read_committed', 'scan.startup.mode' = 'earliest-offset', "
                + "'scan.bounded.mode' = 'latest-offset', 'format' = 'json', "
                + "'json.timestamp-format.standard' = 'ISO-8601')");
        tables.executeSql("CREATE TABLE files (" + COLUMNS.replace("%s", "") + ") WITH ("
                + "'connector' = 'filesystem', 'path' = 'file://" + folder + "', 'format' = 'parquet')");
        tables.executeSql("INSERT INTO files SELECT * FROM orders").await();
    }
}
