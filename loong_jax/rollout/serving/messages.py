"""Messages of the gRPC interface.

The first fields are those of JetStream's `jetstream_proto`, number by number, so its clients speak
to us; ours begin at 100. The package has another name, since two sets of messages of one name
cannot live in one process. The descriptors are built here, from tables, which needs no generated
code and no compiler. Source: github.com/AI-Hypercomputer/JetStream, jetstream/core/proto.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "loong_serving"

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "bool": _FIELD.TYPE_BOOL,
    "double": _FIELD.TYPE_DOUBLE,
    "float": _FIELD.TYPE_FLOAT,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
}

# message -> (label and type, name, number, its oneof); a type that is no scalar is a message
_MESSAGES: dict[str, tuple[tuple[str, str, int, str | None], ...]] = {
    "DecodeRequest": (
        ("int32", "max_tokens", 4, None),  # 0: as many as the server gives
        ("DecodeRequest.TextContent", "text_content", 5, "content"),
        ("DecodeRequest.TokenContent", "token_content", 6, "content"),
        ("DecodeRequest.Metadata", "metadata", 7, "metadata_optional"),
        ("int32", "num_samples", 8, None),  # 0: one
        ("string", "lora_adapter_id", 9, None),  # refused
        ("bool", "has_bos", 10, None),
        ("string", "request_id", 100, None),  # for Abort
        ("optional double", "temperature", 101, None),  # greedy where absent
        ("optional double", "top_p", 102, None),
        ("int32", "top_k", 103, None),
        ("double", "min_p", 104, None),
        ("optional int64", "seed", 105, None),
        ("repeated string", "stop", 106, None),
        ("double", "timeout_s", 107, None),  # 0: the server's; never longer than that
    ),
    "DecodeRequest.TextContent": (("string", "text", 1, None),),
    "DecodeRequest.TokenContent": (("repeated int32", "token_ids", 1, None),),
    "DecodeRequest.Metadata": (("float", "start_time", 1, None),),
    "DecodeResponse": (
        ("DecodeResponse.InitialContent", "initial_content", 2, "content"),
        ("DecodeResponse.StreamContent", "stream_content", 3, "content"),
        ("int32", "policy_version", 100, None),
    ),
    "DecodeResponse.InitialContent": (),
    "DecodeResponse.StreamContent": (
        ("repeated DecodeResponse.StreamContent.Sample", "samples", 1, None),
    ),
    "DecodeResponse.StreamContent.Sample": (
        ("string", "text", 1, None),
        ("repeated int32", "token_ids", 2, None),
        ("repeated float", "log_probs", 100, None),  # nats, of each token, as sampled
        ("string", "finish_reason", 101, None),  # stop or length, in its last message
    ),
    "HealthCheckRequest": (),
    "HealthCheckResponse": (("bool", "is_live", 1, None),),
    "AbortRequest": (("string", "request_id", 1, None),),
    "AbortResponse": (("bool", "was_running", 1, None),),
    "PauseRequest": (),
    "ResumeRequest": (),
    "StatusRequest": (),
    "StatusResponse": (
        ("bool", "is_ready", 1, None),
        ("bool", "is_paused", 2, None),
        ("bool", "is_stopping", 3, None),
        ("int32", "num_requests", 4, None),
        ("int32", "num_running", 5, None),
        ("int32", "num_waiting", 6, None),
    ),
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="loong_serving.proto", package=PACKAGE, syntax="proto3"
    )
    made: dict[str, Any] = {}
    for path, fields in _MESSAGES.items():
        parent, _, name = path.rpartition(".")
        message = made[parent].nested_type.add() if parent else file.message_type.add()
        message.name = name
        made[path] = message
        for kind, field_name, number, oneof in fields:
            _add_field(message, kind, field_name, number, oneof)
    return file


def _add_field(message: Any, kind: str, name: str, number: int, oneof: str | None) -> None:
    label, _, kind = kind.rpartition(" ")
    field = message.field.add(name=name, number=number)
    field.label = _FIELD.LABEL_REPEATED if label == "repeated" else _FIELD.LABEL_OPTIONAL
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    if label == "optional":  # absent and zero are told apart
        oneof, field.proto3_optional = f"_{name}", True
    if oneof is not None:
        names = [found.name for found in message.oneof_decl]
        if oneof not in names:
            message.oneof_decl.add(name=oneof)
            names.append(oneof)
        field.oneof_index = names.index(oneof)


def _build() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()  # our own: the default one may know these names
    pool.AddSerializedFile(_file().SerializeToString())
    return {
        path: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{path}"))
        for path in _MESSAGES
    }


_CLASSES = _build()
DecodeRequest = _CLASSES["DecodeRequest"]
DecodeResponse = _CLASSES["DecodeResponse"]
HealthCheckRequest = _CLASSES["HealthCheckRequest"]
HealthCheckResponse = _CLASSES["HealthCheckResponse"]
AbortRequest = _CLASSES["AbortRequest"]
AbortResponse = _CLASSES["AbortResponse"]
PauseRequest = _CLASSES["PauseRequest"]
ResumeRequest = _CLASSES["ResumeRequest"]
StatusRequest = _CLASSES["StatusRequest"]
StatusResponse = _CLASSES["StatusResponse"]
