// Compiled with an answer, inside the sandbox: calls one function and reports what it returned.
// The value is all that can be claimed on descriptor 3; what it should be is not known in here.
// FUNCTION, HAS_OWNER and ANSWER (a source in C++, or the declaration of a function in C) are put in
// by drivers.py.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace loong {

struct Json {
  char kind = 'n';  // n null, b bool, i integer, f float, s string, l list, d dict
  bool truth = false;
  std::string text;  // of a number or a string
  std::vector<std::pair<std::string, Json>> items;
};

[[noreturn]] inline void fail(const std::string& what) { throw std::runtime_error(what); }

struct Reader {
  const std::string& text;
  size_t at = 0;

  void skip() { while (at < text.size() && (unsigned char)text[at] <= ' ') ++at; }
  bool take(char c) { skip(); if (at < text.size() && text[at] == c) { ++at; return true; } return false; }

  static void utf8(std::string& out, unsigned c) {
    if (c < 0x80) { out += (char)c; }
    else if (c < 0x800) { out += (char)(0xC0 | c >> 6); out += (char)(0x80 | (c & 63)); }
    else if (c < 0x10000) {
      out += (char)(0xE0 | c >> 12); out += (char)(0x80 | (c >> 6 & 63)); out += (char)(0x80 | (c & 63));
    } else {
      out += (char)(0xF0 | c >> 18); out += (char)(0x80 | (c >> 12 & 63));
      out += (char)(0x80 | (c >> 6 & 63)); out += (char)(0x80 | (c & 63));
    }
  }

  std::string string() {
    std::string out;
    for (++at; text.at(at) != '"'; ++at) {
      if (text[at] != '\\') { out += text[at]; continue; }
      switch (text.at(++at)) {
        case 'n': out += '\n'; break;
        case 't': out += '\t'; break;
        case 'r': out += '\r'; break;
        case 'b': out += '\b'; break;
        case 'f': out += '\f'; break;
        case 'u': {
          unsigned c = std::stoul(text.substr(at + 1, 4), nullptr, 16);
          at += 4;
          if (c >= 0xD800 && c < 0xDC00 && text.compare(at + 1, 2, "\\u") == 0) {
            c = 0x10000 + ((c - 0xD800) << 10) + std::stoul(text.substr(at + 3, 4), nullptr, 16) - 0xDC00;
            at += 6;
          }
          utf8(out, c);
          break;
        }
        default: out += text[at];
      }
    }
    ++at;
    return out;
  }

  Json value() {
    Json out;
    skip();
    char c = text.at(at);
    if (c == '"') { out.kind = 's'; out.text = string(); }
    else if (c == '[') {
      out.kind = 'l'; ++at;
      if (!take(']')) { do out.items.emplace_back("", value()); while (take(',')); take(']'); }
    } else if (c == '{') {
      out.kind = 'd'; ++at;
      if (!take('}')) {
        do { skip(); std::string key = string(); take(':'); out.items.emplace_back(key, value()); } while (take(','));
        take('}');
      }
    } else if (c == 't' || c == 'f') { out.kind = 'b'; out.truth = c == 't'; at += c == 't' ? 4 : 5; }
    else if (c == 'n') { at += 4; }
    else {
      size_t end = text.find_first_of(",]} \n", at);
      out.text = text.substr(at, end - at);
      out.kind = out.text.find_first_of(".eEnN") == std::string::npos ? 'i' : 'f';
      at = end == std::string::npos ? text.size() : end;
    }
    return out;
  }
};

// ---- from JSON to the type of a parameter

template <class T, class = void> struct To;

template <class T>
struct To<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
  static T of(const Json& json) {
    if constexpr (std::is_same_v<T, bool>) { if (json.kind != 'b') fail("no bool"); return json.truth; }
    else if constexpr (std::is_same_v<T, char>) {
      if (json.kind != 's' || json.text.size() != 1) fail("no single character");
      return json.text[0];
    } else if constexpr (std::is_floating_point_v<T>) {
      if (json.kind != 'i' && json.kind != 'f') fail("no number");
      return (T)std::stold(json.text);
    } else {
      if (json.kind != 'i') fail("no whole number");
      if constexpr (std::is_signed_v<T>) {
        long long number = std::stoll(json.text);
        if (number < std::numeric_limits<T>::min() || number > std::numeric_limits<T>::max()) fail("out of range");
        return (T)number;
      } else {
        unsigned long long number = std::stoull(json.text);
        if (json.text[0] == '-' || number > std::numeric_limits<T>::max()) fail("out of range");
        return (T)number;
      }
    }
  }
};
template <> struct To<std::string> {
  static std::string of(const Json& json) { if (json.kind != 's') fail("no string"); return json.text; }
};
template <class T> struct To<std::optional<T>> {
  static std::optional<T> of(const Json& json) { if (json.kind == 'n') return {}; return To<T>::of(json); }
};
template <class C> C sequence(const Json& json) {
  if (json.kind != 'l') fail("no list");
  C out;
  for (auto& item : json.items) out.insert(out.end(), To<typename C::value_type>::of(item.second));
  return out;
}
template <class T> struct To<std::vector<T>> { static auto of(const Json& j) { return sequence<std::vector<T>>(j); } };
template <class T> struct To<std::set<T>> { static auto of(const Json& j) { return sequence<std::set<T>>(j); } };
template <class T> struct To<std::unordered_set<T>> {
  static auto of(const Json& j) { return sequence<std::unordered_set<T>>(j); }
};
template <class T, class = void> struct is_list : std::false_type {};
template <class T> struct is_list<T, std::void_t<decltype(T::val), decltype(T::next)>> : std::true_type {};
template <class T, class = void> struct is_tree : std::false_type {};
template <class T>
struct is_tree<T, std::void_t<decltype(T::val), decltype(T::left), decltype(T::right)>> : std::true_type {};
template <class T> T* node(const Json& json) {
  if (json.kind == 'n') return nullptr;
  auto value = To<decltype(T::val)>::of(json);
  if constexpr (std::is_constructible_v<T, decltype(T::val)>) return new T(value);
  else { T* made = new T(); made->val = value; return made; }
}
template <class T> struct To<T*, std::enable_if_t<is_list<T>::value || is_tree<T>::value>> {
  static T* of(const Json& json) {  // of a list, or of a tree level by level
    if (json.kind == 'n') return nullptr;
    if (json.kind != 'l') fail("no list of values");
    std::vector<T*> all;
    for (auto& item : json.items) all.push_back(node<T>(item.second));
    size_t next = 1;
    for (T* one : all) {
      if (!one) continue;
      auto take = [&]() -> T* { return next < all.size() ? all[next++] : nullptr; };
      if constexpr (is_list<T>::value) one->next = take();
      else { one->left = take(); one->right = take(); }
    }
    return all.empty() ? nullptr : all[0];
  }
};
template <class T> struct To<T*, std::enable_if_t<!is_list<T>::value && !is_tree<T>::value>> {  // what C takes for a list or a string; it lives as long as we do
  static T* of(const Json& json) {
    using Item = std::remove_const_t<T>;
    size_t size = json.kind == 's' ? json.text.size() + 1 : json.items.size();
    Item* out = new Item[size + 1]();
    if constexpr (std::is_same_v<Item, char>) {
      if (json.kind == 's') { json.text.copy(out, size); return out; }
    }
    if (json.kind != 'l') fail("no list");
    for (size_t i = 0; i < size; ++i) out[i] = To<Item>::of(json.items[i].second);
    return out;
  }
};
template <class A, class B> struct To<std::pair<A, B>> {
  static std::pair<A, B> of(const Json& json) {
    if (json.kind != 'l' || json.items.size() != 2) fail("no pair");
    return {To<A>::of(json.items[0].second), To<B>::of(json.items[1].second)};
  }
};
template <class C> C mapping(const Json& json) {
  if (json.kind != 'd') fail("no object");
  C out;
  for (auto& [key, value] : json.items) out[key] = To<typename C::mapped_type>::of(value);
  return out;
}
template <class T> struct To<std::map<std::string, T>> {
  static auto of(const Json& j) { return mapping<std::map<std::string, T>>(j); }
};
template <class T> struct To<std::unordered_map<std::string, T>> {
  static auto of(const Json& j) { return mapping<std::unordered_map<std::string, T>>(j); }
};

// ---- from a returned value to the report

inline std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  char code[8];
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') { out += '\\'; out += (char)c; }
    else if (c < 32) { snprintf(code, sizeof code, "\\u%04x", c); out += code; }
    else out += (char)c;
  }
  return out + "\"";
}
inline std::string tagged(const char* kind, const std::string& value) {
  return std::string("{\"t\":\"") + kind + "\",\"v\":" + value + "}";
}

template <class T, class = void> struct From;
template <class T> std::string from(const T& value) { return From<T>::of(value); }

template <class T>
struct From<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
  static std::string of(T value) {
    if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
    else if constexpr (std::is_same_v<T, char>) return in_quotes(std::string(1, value));
    else if constexpr (std::is_integral_v<T>) return std::to_string(value);
    else {
      if (std::isnan(value)) return tagged("nan", "null");
      if (std::isinf(value)) return tagged("infinity", value > 0 ? "1" : "-1");
      char text[64];
      snprintf(text, sizeof text, "%.17g", (double)value);
      return text;
    }
  }
};
template <> struct From<std::string> {
  static std::string of(const std::string& value) { return in_quotes(value); }
};
template <> struct From<const char*> {
  static std::string of(const char* value) { return in_quotes(value); }
};
template <> struct From<char*> : From<const char*> {};
template <class T> struct From<T*, std::enable_if_t<is_list<T>::value || is_tree<T>::value>> {
  static std::string of(T* root) {
    std::vector<T*> all{root};
    for (size_t i = 0; i < all.size(); ++i) {
      if (i > 1000000) fail("the nodes go round, or are more than a million");
      if (!all[i]) continue;
      if constexpr (is_list<T>::value) all.push_back(all[i]->next);
      else { all.push_back(all[i]->left); all.push_back(all[i]->right); }
    }
    while (!all.empty() && !all.back()) all.pop_back();
    std::string out;
    for (T* one : all) out += (out.empty() ? "" : ",") + (one ? from(one->val) : std::string("null"));
    return tagged("nodes", "[" + out + "]");
  }
};
template <class T> struct From<std::optional<T>> {
  static std::string of(const std::optional<T>& value) { return value ? from(*value) : "null"; }
};
template <class C> std::string list(const char* kind, const C& items) {
  std::string out = "[";
  for (auto it = items.begin(); it != items.end(); ++it) {
    if (it != items.begin()) out += ",";
    out += from<typename C::value_type>(*it);
  }
  return tagged(kind, out + "]");
}
template <class T> struct From<std::vector<T>> { static auto of(const std::vector<T>& v) { return list("list", v); } };
template <class T, size_t N> struct From<std::array<T, N>> {
  static auto of(const std::array<T, N>& v) { return list("list", v); }
};
template <class T> struct From<std::set<T>> { static auto of(const std::set<T>& v) { return list("set", v); } };
template <class T> struct From<std::unordered_set<T>> {
  static auto of(const std::unordered_set<T>& v) { return list("set", v); }
};
template <class A, class B> struct From<std::pair<A, B>> {
  static std::string of(const std::pair<A, B>& v) {
    return tagged("tuple", "[" + from(v.first) + "," + from(v.second) + "]");
  }
};
template <class... T> struct From<std::tuple<T...>> {
  static std::string of(const std::tuple<T...>& value) {
    std::string out;
    std::apply([&](const auto&... item) { ((out += (out.empty() ? "" : ",") + from(item)), ...); }, value);
    return tagged("tuple", "[" + out + "]");
  }
};
template <class C> std::string dict(const C& items) {
  std::string out;
  for (auto& [key, value] : items) {
    std::string name;
    if constexpr (std::is_same_v<std::decay_t<decltype(key)>, std::string>) name = key;
    else name = std::to_string(key);
    out += (out.empty() ? "[" : ",[") + in_quotes(name) + "," + from(value) + "]";
  }
  return tagged("dict", "[" + out + "]");
}
template <class K, class T> struct From<std::map<K, T>> { static auto of(const std::map<K, T>& v) { return dict(v); } };
template <class K, class T> struct From<std::unordered_map<K, T>> {
  static auto of(const std::unordered_map<K, T>& v) { return dict(v); }
};

// ---- the call

template <class T, class = void> struct is_known : std::false_type {};
template <class T> struct is_known<T, std::void_t<decltype(From<T>::of(std::declval<const T&>()))>> : std::true_type {};
template <class V> std::string changed(const V& values) {  // what a call that returns nothing did
  if constexpr (std::tuple_size_v<V> > 0) {
    using First = std::tuple_element_t<0, V>;
    if constexpr (is_known<First>::value) return tagged("changed", from<First>(std::get<0>(values)));
  }
  return "null";
}

template <class... A, class F, size_t... I>
std::string with(F function, const Json& args, std::index_sequence<I...>) {
  if (args.items.size() != sizeof...(A)) fail("another number of arguments");
  std::tuple<std::decay_t<A>...> values{To<std::decay_t<A>>::of(args.items[I].second)...};
  using R = decltype(function(std::get<I>(values)...));
  if constexpr (std::is_void_v<R>) { function(std::get<I>(values)...); return changed(values); }
  else return from<std::decay_t<R>>(function(std::get<I>(values)...));
}
template <class R, class... A> std::string loong_call(R (*f)(A...), const Json& args) {
  return with<A...>([&](auto&... v) -> R { return f(static_cast<A>(v)...); }, args, std::index_sequence_for<A...>());
}
#if HAS_OWNER
template <class R, class C, class... A> std::string loong_call(R (C::*f)(A...), const Json& args) {
  C owner;
  return with<A...>([&](auto&... v) -> R { return (owner.*f)(static_cast<A>(v)...); }, args,
                    std::index_sequence_for<A...>());
}
template <class R, class C, class... A> std::string loong_call(R (C::*f)(A...) const, const Json& args) {
  C owner;
  return with<A...>([&](auto&... v) -> R { return (owner.*f)(static_cast<A>(v)...); }, args,
                    std::index_sequence_for<A...>());
}
#endif

template <class F> int loong_run(F function) {
  std::ifstream file("/tmp/call.json", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Json call = Reader{text}.value();
  for (auto& [key, value] : call.items) {
    if (key != "args") continue;
    std::string body = function(value);
    fflush(nullptr);
    for (size_t sent = 0; sent < body.size();) {
      ssize_t more = write(3, body.data() + sent, body.size() - sent);
      if (more <= 0) return 1;
      sent += more;
    }
    return 0;
  }
  return 1;
}

}  // namespace loong

ANSWER

int main() {
  return loong::loong_run([](const auto& loong_args) { return loong::loong_call(&FUNCTION, loong_args); });
}
