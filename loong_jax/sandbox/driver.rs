// Compiled with an answer as a module of its crate, inside the sandbox: calls one function and
// reports what it returned. The value is all that can be claimed on descriptor 3; what it should be
// is not known in here. FUNCTION and OWNER_PARAMETERS are put in by drivers.py.
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::{Debug, Display, Write as _};
use std::hash::Hash;
use std::io::Write as _;
use std::os::unix::io::FromRawFd;
use std::str::FromStr;

pub enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Json>),
    Dict(Vec<(String, Json)>),
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&mut self) -> u8 {
        while self.text[self.at] <= b' ' {
            self.at += 1;
        }
        self.text[self.at]
    }

    fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == wanted;
        self.at += found as usize;
        found
    }

    fn hex(&mut self) -> u32 {
        let digits = std::str::from_utf8(&self.text[self.at..self.at + 4]).unwrap();
        self.at += 4;
        u32::from_str_radix(digits, 16).unwrap()
    }

    fn string(&mut self) -> String {
        assert!(self.take(b'"'));
        let mut out = Vec::new();
        loop {
            let byte = self.text[self.at];
            self.at += 1;
            if byte == b'"' {
                return String::from_utf8(out).unwrap();
            }
            if byte != b'\\' {
                out.push(byte);
                continue;
            }
            let escaped = self.text[self.at];
            self.at += 1;
            let code = match escaped {
                b'n' => 10,
                b't' => 9,
                b'r' => 13,
                b'b' => 8,
                b'f' => 12,
                b'u' => {
                    let high = self.hex();
                    if (0xD800..0xDC00).contains(&high) && self.text[self.at..].starts_with(b"\\u") {
                        self.at += 2;
                        0x10000 + ((high - 0xD800) << 10) + self.hex().wrapping_sub(0xDC00)
                    } else {
                        high
                    }
                }
                other => other as u32,
            };
            let mut buffer = [0; 4];
            let letter = char::from_u32(code).expect("half of a surrogate pair is no character");
            out.extend_from_slice(letter.encode_utf8(&mut buffer).as_bytes());
        }
    }

    fn value(&mut self) -> Json {
        match self.peek() {
            b'"' => Json::Text(self.string()),
            b'[' => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.take(b']') {
                    items.push(self.value());
                    self.take(b',');
                }
                Json::List(items)
            }
            b'{' => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.take(b'}') {
                    let key = self.string();
                    self.take(b':');
                    items.push((key, self.value()));
                    self.take(b',');
                }
                Json::Dict(items)
            }
            _ => {
                let start = self.at;
                while self.at < self.text.len() && !b",]} \n".contains(&self.text[self.at]) {
                    self.at += 1;
                }
                match std::str::from_utf8(&self.text[start..self.at]).unwrap() {
                    "null" => Json::Null,
                    "true" => Json::Bool(true),
                    "false" => Json::Bool(false),
                    digits => Json::Number(digits.to_string()),
                }
            }
        }
    }
}

// ---- from JSON to the type of a parameter

pub trait Value: Sized {
    fn of(json: &Json) -> Self;
}

macro_rules! numbers {
    ($($kind:ty),*) => { $(impl Value for $kind {
        fn of(json: &Json) -> Self {
            match json {
                Json::Number(text) => text.parse().expect("the number does not fit its type"),
                _ => panic!("no number"),
            }
        }
    })* };
}
numbers!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, f32, f64);

impl Value for bool {
    fn of(json: &Json) -> Self {
        match json {
            Json::Bool(value) => *value,
            _ => panic!("no bool"),
        }
    }
}
impl Value for String {
    fn of(json: &Json) -> Self {
        match json {
            Json::Text(text) => text.clone(),
            _ => panic!("no string"),
        }
    }
}
impl Value for char {
    fn of(json: &Json) -> Self {
        let text = String::of(json);
        let mut letters = text.chars();
        match (letters.next(), letters.next()) {
            (Some(letter), None) => letter,
            _ => panic!("no single character"),
        }
    }
}
impl<T: Value> Value for Option<T> {
    fn of(json: &Json) -> Self {
        match json {
            Json::Null => None,
            _ => Some(T::of(json)),
        }
    }
}
impl<T: Value> Value for Box<T> {
    fn of(json: &Json) -> Self {
        Box::new(T::of(json))
    }
}
impl<T: Value, const N: usize> Value for [T; N] {
    fn of(json: &Json) -> Self {
        match Vec::of(json).try_into() {
            Ok(items) => items,
            Err(_) => panic!("another number of items"),
        }
    }
}

fn items<T: Value, C: FromIterator<T>>(json: &Json) -> C {
    match json {
        Json::List(items) => items.iter().map(T::of).collect(),
        _ => panic!("no list"),
    }
}
macro_rules! collections {
    ($($kind:ident: $($bound:ident)|*),*) => { $(impl<T: Value $(+ $bound)*> Value for $kind<T> {
        fn of(json: &Json) -> Self { items(json) }
    })* };
}
collections!(Vec:, VecDeque:, HashSet: Eq|Hash, BTreeSet: Ord);

fn pairs<K: FromStr, V: Value, C: FromIterator<(K, V)>>(json: &Json) -> C {
    match json {
        Json::Dict(items) => items
            .iter()
            .map(|(key, value)| (key.parse().ok().expect("a key of another type"), V::of(value)))
            .collect(),
        _ => panic!("no object"),
    }
}
impl<K: FromStr + Eq + Hash, V: Value> Value for HashMap<K, V> {
    fn of(json: &Json) -> Self {
        pairs(json)
    }
}
impl<K: FromStr + Ord, V: Value> Value for BTreeMap<K, V> {
    fn of(json: &Json) -> Self {
        pairs(json)
    }
}

// What is borrowed lives as long as the process.
impl Value for &'static str {
    fn of(json: &Json) -> Self {
        Box::leak(String::of(json).into_boxed_str())
    }
}
impl<T: Value> Value for &'static T {
    fn of(json: &Json) -> Self {
        Box::leak(Box::new(T::of(json)))
    }
}
impl<T: Value> Value for &'static mut T {
    fn of(json: &Json) -> Self {
        Box::leak(Box::new(T::of(json)))
    }
}
impl<T: Value> Value for &'static [T] {
    fn of(json: &Json) -> Self {
        Vec::leak(Vec::of(json))
    }
}
impl<T: Value> Value for &'static mut [T] {
    fn of(json: &Json) -> Self {
        Vec::leak(Vec::of(json))
    }
}

// ---- from a returned value to the report

pub trait Report {
    fn report(&self) -> String;
}

fn tagged(kind: &str, value: &str) -> String {
    format!("{{\"t\":\"{}\",\"v\":{}}}", kind, value)
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\0'..='\x1f' => write!(out, "\\u{:04x}", letter as u32).unwrap(),
            _ => out.push(letter),
        }
    }
    out + "\""
}

macro_rules! reports {
    ($kind:literal, $method:expr => $($type:ty),*) => { $(impl Report for $type {
        fn report(&self) -> String { tagged($kind, &$method(self.to_string())) }
    })* };
}
reports!("integer", |text: String| quoted(&text) =>
    i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);
reports!("plain", |text: String| quoted(&text) => char, str, String);
reports!("plain", |text: String| text => bool);

impl Report for f64 {
    fn report(&self) -> String {
        if self.is_nan() {
            tagged("nan", "null")
        } else if self.is_infinite() {
            tagged("infinity", if *self > 0.0 { "1" } else { "-1" })
        } else {
            tagged("plain", &format!("{:?}", self))
        }
    }
}
impl Report for f32 {
    fn report(&self) -> String {
        (*self as f64).report()
    }
}
impl Report for () {
    fn report(&self) -> String {
        tagged("plain", "null")
    }
}
impl<T: Report> Report for Option<T> {
    fn report(&self) -> String {
        self.as_ref().map_or(tagged("plain", "null"), T::report)
    }
}
impl<T: Report, E: Debug> Report for Result<T, E> {
    fn report(&self) -> String {
        self.as_ref().expect("the function returned an error").report()
    }
}
impl<T: Report + ?Sized> Report for &T {
    fn report(&self) -> String {
        (**self).report()
    }
}
impl<T: Report + ?Sized> Report for &mut T {
    fn report(&self) -> String {
        (**self).report()
    }
}
impl<T: Report + ?Sized> Report for Box<T> {
    fn report(&self) -> String {
        (**self).report()
    }
}

fn listed<'a, T: Report + 'a>(kind: &str, items: impl Iterator<Item = &'a T>) -> String {
    let reports: Vec<String> = items.map(T::report).collect();
    tagged(kind, &format!("[{}]", reports.join(",")))
}
impl<T: Report> Report for [T] {
    fn report(&self) -> String {
        listed("list", self.iter())
    }
}
impl<T: Report, const N: usize> Report for [T; N] {
    fn report(&self) -> String {
        listed("list", self.iter())
    }
}
macro_rules! lists {
    ($($kind:ident $word:literal),*) => { $(impl<T: Report> Report for $kind<T> {
        fn report(&self) -> String { listed($word, self.iter()) }
    })* };
}
lists!(Vec "list", VecDeque "list", HashSet "set", BTreeSet "set");
macro_rules! maps {
    ($($kind:ident),*) => { $(impl<K: Display, V: Report> Report for $kind<K, V> {
        fn report(&self) -> String {
            let pairs: Vec<String> =
                self.iter().map(|(k, v)| format!("[{},{}]", quoted(&k.to_string()), v.report())).collect();
            tagged("dict", &format!("[{}]", pairs.join(",")))
        }
    })* };
}
maps!(HashMap, BTreeMap);

// ---- the call

pub struct Arguments<'a> {
    items: std::slice::Iter<'a, Json>,
}

/// A parameter of a function: the next argument, or the owner of a method.
pub trait Parameter {
    fn take(arguments: &mut Arguments) -> Self;
}
impl<T: Value> Parameter for T {
    fn take(arguments: &mut Arguments) -> Self {
        T::of(arguments.items.next().expect("too few arguments"))
    }
}
OWNER_PARAMETERS

pub trait Call<Parameters> {
    fn call(self, arguments: Arguments) -> String;
}
macro_rules! tuples {
    ($($name:ident)*) => {
        #[allow(non_snake_case, unused_mut)]
        impl<F, R, $($name),*> Call<($($name,)*)> for F
        where F: FnOnce($($name),*) -> R, R: Report, $($name: Parameter),*
        {
            fn call(self, mut arguments: Arguments) -> String {
                $(let $name = $name::take(&mut arguments);)*
                assert!(arguments.items.next().is_none(), "too many arguments");
                self($($name),*).report()
            }
        }
    };
}
tuples!();
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E G);
tuples!(A B C D E G H);
tuples!(A B C D E G H I);

macro_rules! values {
    ($($name:ident $index:tt)*) => {
        impl<$($name: Value),*> Value for ($($name,)*) {
            fn of(json: &Json) -> Self {
                match json {
                    Json::List(items) if items.len() == [$($index),*].len() => ($($name::of(&items[$index]),)*),
                    _ => panic!("no tuple of this length"),
                }
            }
        }
        impl<$($name: Report),*> Report for ($($name,)*) {
            fn report(&self) -> String {
                tagged("tuple", &format!("[{}]", [$(self.$index.report()),*].join(",")))
            }
        }
    };
}
values!(A 0);
values!(A 0 B 1);
values!(A 0 B 1 C 2);
values!(A 0 B 1 C 2 D 3);
values!(A 0 B 1 C 2 D 3 E 4);

pub fn run() {
    let text = std::fs::read("/tmp/call.json").unwrap();
    let fields = match (Reader { text: &text, at: 0 }).value() {
        Json::Dict(fields) => fields,
        _ => panic!("no call"),
    };
    for (key, value) in &fields {
        if let ("args", Json::List(items)) = (key.as_str(), value) {
            let body = Call::call(FUNCTION, Arguments { items: items.iter() });
            unsafe { std::fs::File::from_raw_fd(3) }.write_all(body.as_bytes()).unwrap();
        }
    }
}
