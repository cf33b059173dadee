// Compiled with an answer, inside the sandbox: calls one function and reports what it returned.
// The value is all that can be claimed on descriptor 3; what it should be is not known in here.
// FUNCTION is put in by drivers.py.
package main

import (
	loongBytes "bytes"
	loongJSON "encoding/json"
	loongFmt "fmt"
	loongMath "math"
	loongOS "os"
	loongReflect "reflect"
)

func loongTagged(kind string, value interface{}) map[string]interface{} {
	return map[string]interface{}{"t": kind, "v": value}
}

func loongPlain(value loongReflect.Value) map[string]interface{} {
	switch value.Kind() {
	case loongReflect.Interface, loongReflect.Ptr:
		if value.IsNil() {
			return loongTagged("plain", nil)
		}
		return loongPlain(value.Elem())
	case loongReflect.Bool:
		return loongTagged("plain", value.Bool())
	case loongReflect.Int, loongReflect.Int8, loongReflect.Int16, loongReflect.Int32, loongReflect.Int64:
		return loongTagged("integer", loongFmt.Sprint(value.Int()))
	case loongReflect.Uint, loongReflect.Uint8, loongReflect.Uint16, loongReflect.Uint32, loongReflect.Uint64:
		return loongTagged("integer", loongFmt.Sprint(value.Uint()))
	case loongReflect.Float32, loongReflect.Float64:
		if loongMath.IsNaN(value.Float()) {
			return loongTagged("nan", nil)
		}
		if loongMath.IsInf(value.Float(), 1) {
			return loongTagged("infinity", 1)
		}
		if loongMath.IsInf(value.Float(), -1) {
			return loongTagged("infinity", -1)
		}
		return loongTagged("plain", value.Float())
	case loongReflect.String:
		return loongTagged("plain", value.String())
	case loongReflect.Slice, loongReflect.Array:
		items := []interface{}{}
		for i := 0; i < value.Len(); i++ {
			items = append(items, loongPlain(value.Index(i)))
		}
		return loongTagged("list", items)
	case loongReflect.Map:
		pairs := []interface{}{}
		for _, key := range value.MapKeys() {
			pairs = append(pairs, []interface{}{loongFmt.Sprint(key.Interface()), loongPlain(value.MapIndex(key))})
		}
		return loongTagged("dict", pairs)
	}
	panic(loongFmt.Sprintf("a %s was returned", value.Kind()))
}

func main() {
	text, err := loongOS.ReadFile("/tmp/call.json")
	if err != nil {
		panic(err)
	}
	var call struct{ Args []loongJSON.RawMessage }
	if err := loongJSON.Unmarshal(text, &call); err != nil {
		panic(err)
	}
	function := loongReflect.ValueOf(FUNCTION)
	kind := function.Type()
	if kind.NumIn() != len(call.Args) {
		panic("another number of arguments")
	}
	args := []loongReflect.Value{}
	for i, raw := range call.Args {
		made := loongReflect.New(kind.In(i))
		if kind.In(i).Kind() == loongReflect.Int32 && len(raw) > 0 && raw[0] == '"' { // a rune
			var word string
			if err := loongJSON.Unmarshal(raw, &word); err != nil || len([]rune(word)) != 1 {
				panic("no single character")
			}
			made.Elem().SetInt(int64([]rune(word)[0]))
		} else if err := loongJSON.Unmarshal(raw, made.Interface()); err != nil {
			panic(err)
		}
		args = append(args, made.Elem())
	}
	var found []loongReflect.Value
	if kind.IsVariadic() {
		found = function.CallSlice(args)
	} else {
		found = function.Call(args)
	}
	values := []interface{}{}
	for _, one := range found {
		values = append(values, loongPlain(one))
	}
	var value interface{} = loongTagged("tuple", values)
	if len(values) == 0 {
		value = loongTagged("plain", nil)
	} else if len(values) == 1 {
		value = values[0]
	}
	var body loongBytes.Buffer
	if err := loongJSON.NewEncoder(&body).Encode(value); err != nil {
		panic(err)
	}
	if _, err := loongOS.NewFile(3, "result").Write(body.Bytes()); err != nil {
		panic(err)
	}
}
