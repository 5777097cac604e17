import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.exceptions.JedisDataException;

/** Sends the commands of a file with Jedis, and writes the replies as JSON. Arguments: OtherClients jedis PORT FILE
 * (lines of hexadecimal words). */
public class OtherClients {
    public static void main(String[] args) throws Exception {
        var config = DefaultJedisClientConfig.builder().protocol(RedisProtocol.RESP3).socketTimeoutMillis(20000).build();
        var replies = new ArrayList<String>();
        try (Jedis client = new Jedis(new HostAndPort("127.0.0.1", Integer.parseInt(args[1])), config)) {
            for (String line : Files.readAllLines(Path.of(args[2]))) {
                String[] words = line.split(" ", -1);
                byte[][] rest = new byte[words.length - 1][];
                for (int at = 1; at < words.length; at++) {
                    rest[at - 1] = bytes(words[at]);
                }
                byte[] name = bytes(words[0]);
                try {
                    replies.add(json(client.sendCommand(() -> name, rest)));
                } catch (JedisDataException error) {
                    replies.add(json(error));
                }
            }
        }
        System.out.print("[" + String.join(",", replies) + "]");
    }

    static byte[] bytes(String hexadecimal) {
        byte[] found = new byte[hexadecimal.length() / 2];
        for (int at = 0; at < found.length; at++) {
            found[at] = (byte) Integer.parseInt(hexadecimal.substring(2 * at, 2 * at + 2), 16);
        }
        return found;
    }

    static String json(Object reply) {
        if (reply == null) {
            return "null";
        }
        if (reply instanceof byte[] text) {
            return quoted(new String(text, StandardCharsets.ISO_8859_1));
        }
        if (reply instanceof List<?> list) {
            var parts = new ArrayList<String>();
            for (Object item : list) {
                parts.add(json(item));
            }
            return "[" + String.join(",", parts) + "]";
        }
        if (reply instanceof Map.Entry<?, ?> pair) {
            return json(List.of(pair.getKey(), pair.getValue() == null ? "null" : pair.getValue()));
        }
        if (reply instanceof Exception error) {
            return "{\"error\":" + quoted(String.valueOf(error.getMessage())) + "}";
        }
        if (reply instanceof Long || reply instanceof Boolean) {
            return reply.toString();
        }
        return "{\"other\":" + quoted(reply.getClass().getSimpleName() + " " + reply) + "}";
    }

    static String quoted(String text) {
        var found = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            found.append(letter < 32 || letter > 126 || letter == '"' || letter == '\\' ? String.format("\\u%04x", (int) letter) : "" + letter);
        }
        return found.append('"').toString();
    }
}
