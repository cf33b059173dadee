// Compiled with an answer, inside the sandbox: calls one method and reports what it returned.
// The value is all that can be claimed on descriptor 3; what it should be is not known in here.
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

public class LoongDriver {
    private final String text;
    private int at = 0;

    private LoongDriver(String text) { this.text = text; }

    public static void main(String[] arguments) throws Throwable {
        byte[] bytes = java.nio.file.Files.readAllBytes(java.nio.file.Path.of("/tmp/call.json"));
        Map<?, ?> call = (Map<?, ?>) new LoongDriver(new String(bytes, "UTF-8")).value();
        String function = (String) call.get("function");
        int dot = function.lastIndexOf('.');
        Class<?> owner = Class.forName(dot < 0 ? arguments[0] : function.substring(0, dot));
        List<?> args = (List<?>) call.get("args");
        Method method = method(owner, function.substring(dot + 1), args.size());
        method.setAccessible(true);
        Type[] types = method.getGenericParameterTypes();
        Object[] given = new Object[types.length];
        for (int i = 0; i < types.length; i++) given[i] = to(types[i], args.get(i));
        Object target = null;
        if (!Modifier.isStatic(method.getModifiers())) {
            Constructor<?> make = owner.getDeclaredConstructor();
            make.setAccessible(true);
            target = make.newInstance();
        }
        Object value;
        try {
            value = method.invoke(target, given);
        } catch (java.lang.reflect.InvocationTargetException error) {
            throw error.getCause();
        }
        StringBuilder out = new StringBuilder();
        boolean isChange = method.getReturnType() == void.class && given.length > 0;
        if (isChange) out.append("{\"t\":\"changed\",\"v\":");
        Class<?> kind = isChange ? method.getParameterTypes()[0] : method.getReturnType();
        if (isNode(kind)) nodes(out, isChange ? given[0] : value, 0);
        else plain(out, isChange ? given[0] : value, 0);
        if (isChange) out.append('}');
        System.out.flush();
        try (java.io.FileOutputStream file = new java.io.FileOutputStream("/proc/self/fd/3")) {
            file.write(out.toString().getBytes("UTF-8"));
        }
        System.exit(0);
    }

    private static Method method(Class<?> owner, String name, int count) {
        Method found = null;
        for (Method one : owner.getDeclaredMethods()) {
            if (!one.getName().equals(name) || one.getParameterCount() != count) continue;
            if (found != null) throw new IllegalArgumentException(name + " is overloaded");
            found = one;
        }
        if (found == null) throw new IllegalArgumentException("no method " + name + " of " + count + " arguments");
        return found;
    }

    // ---- nodes of a list, or of a tree level by level

    private static boolean isNode(Class<?> kind) {
        return kind.getSimpleName().equals("ListNode") || kind.getSimpleName().equals("TreeNode");
    }

    private static java.lang.reflect.Field field(Class<?> kind, String name) throws ReflectiveOperationException {
        java.lang.reflect.Field found = kind.getDeclaredField(name);
        found.setAccessible(true);
        return found;
    }

    private static String[] links(Class<?> kind) {
        return kind.getSimpleName().equals("ListNode") ? new String[] {"next"} : new String[] {"left", "right"};
    }

    private static Object made(Class<?> kind, List<?> json) throws ReflectiveOperationException {
        List<Object> all = new ArrayList<>();
        for (Object item : json) {
            Object node = null;
            if (item != null) {
                Constructor<?> make = kind.getDeclaredConstructors()[0];
                for (Constructor<?> one : kind.getDeclaredConstructors())
                    if (one.getParameterCount() < make.getParameterCount()) make = one;
                make.setAccessible(true);
                Object value = to(field(kind, "val").getGenericType(), item);
                node = make.getParameterCount() == 0 ? make.newInstance() : make.newInstance(value);
                field(kind, "val").set(node, value);
            }
            all.add(node);
        }
        int next = 1;
        for (Object node : all)
            for (String link : links(kind))
                if (node != null && next < all.size()) field(kind, link).set(node, all.get(next++));
        return all.isEmpty() ? null : all.get(0);
    }

    private static void nodes(StringBuilder out, Object root, int depth) throws ReflectiveOperationException {
        List<Object> all = new ArrayList<>();
        all.add(root);
        for (int i = 0; i < all.size(); i++) {
            if (i > 1000000) throw new IllegalArgumentException("the nodes go round, or are more than a million");
            Object node = all.get(i);
            if (node != null) for (String link : links(node.getClass())) all.add(field(node.getClass(), link).get(node));
        }
        while (!all.isEmpty() && all.get(all.size() - 1) == null) all.remove(all.size() - 1);
        List<Object> values = new ArrayList<>();
        for (Object node : all) values.add(node == null ? null : field(node.getClass(), "val").get(node));
        list(out, "nodes", values, depth);
    }

    // ---- from JSON to the type of a parameter

    private static Object to(Type type, Object json) throws ReflectiveOperationException {
        Class<?> raw = type instanceof Class ? (Class<?>) type
            : type instanceof ParameterizedType ? (Class<?>) ((ParameterizedType) type).getRawType() : Object.class;
        if (json == null && !raw.isPrimitive()) return null;
        if (isNode(raw)) return made(raw, (List<?>) json);
        if (raw == int.class || raw == Integer.class) return ((BigDecimal) json).intValueExact();
        if (raw == long.class || raw == Long.class) return ((BigDecimal) json).longValueExact();
        if (raw == short.class || raw == Short.class) return ((BigDecimal) json).shortValueExact();
        if (raw == byte.class || raw == Byte.class) return ((BigDecimal) json).byteValueExact();
        if (raw == double.class || raw == Double.class) return ((BigDecimal) json).doubleValue();
        if (raw == float.class || raw == Float.class) return ((BigDecimal) json).floatValue();
        if (raw == BigInteger.class) return ((BigDecimal) json).toBigIntegerExact();
        if (raw == char.class || raw == Character.class) {
            if (((String) json).length() != 1) throw new IllegalArgumentException("no single character");
            return ((String) json).charAt(0);
        }
        if (raw.isArray()) {
            List<?> items = (List<?>) json;
            Object array = Array.newInstance(raw.getComponentType(), items.size());
            for (int i = 0; i < items.size(); i++) Array.set(array, i, to(raw.getComponentType(), items.get(i)));
            return array;
        }
        if (raw.isPrimitive()) return json;
        Type[] inner = type instanceof ParameterizedType ? ((ParameterizedType) type).getActualTypeArguments()
            : new Type[] {Object.class, Object.class};
        if (raw.isAssignableFrom(ArrayList.class) && raw != Object.class) {
            List<Object> out = new ArrayList<>();
            for (Object item : (List<?>) json) out.add(to(inner[0], item));
            return out;
        }
        if (raw.isAssignableFrom(HashSet.class) && raw != Object.class) {
            Set<Object> out = new HashSet<>();
            for (Object item : (List<?>) json) out.add(to(inner[0], item));
            return out;
        }
        if (raw.isAssignableFrom(HashMap.class) && raw != Object.class) {
            Map<Object, Object> out = new HashMap<>();
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) json).entrySet()) out.put(entry.getKey(), to(inner[1], entry.getValue()));
            return out;
        }
        return raw.cast(json);  // boolean is boxed by reflection
    }

    // ---- from a returned value to the report

    private static void plain(StringBuilder out, Object value, int depth) throws ReflectiveOperationException {
        if (depth > 50) throw new IllegalArgumentException("the value is nested more than 50 deep");
        if (value == null || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof String || value instanceof Character) {
            quote(out, value.toString());
        } else if (value instanceof Double || value instanceof Float) {
            double number = ((Number) value).doubleValue();
            if (Double.isNaN(number)) {
                out.append("{\"t\":\"nan\",\"v\":null}");
            } else if (Double.isInfinite(number)) {
                out.append("{\"t\":\"infinity\",\"v\":").append(number > 0 ? "1}" : "-1}");
            } else {
                out.append(number);
            }
        } else if (value instanceof Number) {
            out.append(value);
        } else if (isNode(value.getClass())) {
            nodes(out, value, depth + 1);
        } else if (value.getClass().isArray()) {
            List<Object> items = new ArrayList<>();
            for (int i = 0; i < Array.getLength(value); i++) items.add(Array.get(value, i));
            list(out, "list", items, depth);
        } else if (value instanceof Collection) {
            list(out, value instanceof Set ? "set" : "list", (Collection<?>) value, depth);
        } else if (value instanceof Map) {
            out.append("{\"t\":\"dict\",\"v\":[");
            String comma = "";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(comma).append('[');
                quote(out, String.valueOf(entry.getKey()));
                out.append(',');
                plain(out, entry.getValue(), depth + 1);
                out.append(']');
                comma = ",";
            }
            out.append("]}");
        } else {
            throw new IllegalArgumentException("a " + value.getClass() + " was returned");
        }
    }

    private static void list(StringBuilder out, String kind, Collection<?> items, int depth)
            throws ReflectiveOperationException {
        out.append("{\"t\":\"").append(kind).append("\",\"v\":[");
        String comma = "";
        for (Object item : items) {
            out.append(comma);
            plain(out, item, depth + 1);
            comma = ",";
        }
        out.append("]}");
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') out.append('\\').append(c);
            else if (c < 32 || Character.isSurrogate(c)) out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        out.append('"');
    }

    // ---- JSON

    private void skip() { while (at < text.length() && text.charAt(at) <= ' ') at++; }

    private boolean take(char c) {
        skip();
        if (at < text.length() && text.charAt(at) == c) { at++; return true; }
        return false;
    }

    private Object value() {
        skip();
        char c = text.charAt(at);
        if (c == '"') return string();
        if (take('[')) {
            List<Object> out = new ArrayList<>();
            if (take(']')) return out;
            do out.add(value()); while (take(','));
            take(']');
            return out;
        }
        if (take('{')) {
            Map<String, Object> out = new LinkedHashMap<>();
            if (take('}')) return out;
            do { skip(); String key = string(); take(':'); out.put(key, value()); } while (take(','));
            take('}');
            return out;
        }
        int start = at;
        while (at < text.length() && ",]} \n".indexOf(text.charAt(at)) < 0) at++;
        String word = text.substring(start, at);
        if (word.equals("null")) return null;
        if (word.equals("true") || word.equals("false")) return word.equals("true");
        return new BigDecimal(word);
    }

    private String string() {
        StringBuilder out = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            char c = text.charAt(at);
            if (c != '\\') { out.append(c); continue; }
            c = text.charAt(++at);
            int plain = "nrtbf".indexOf(c);
            if (c == 'u') { out.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16)); at += 4; }
            else out.append(plain < 0 ? c : "\n\r\t\b\f".charAt(plain));
        }
        at++;
        return out.toString();
    }
}
