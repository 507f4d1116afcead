package worker

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shoal-ml/shoal/api"
)

// Every request that is written with all its fields is read as it was.
func TestRequestsComeBackAsTheyWere(t *testing.T) {
	for name, create := range requests {
		sent := Tag(create(), 7)
		fill(reflect.ValueOf(sent).Elem())
		text, err := json.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		got, serial, err := ParseRequest(text)
		if err != nil || serial != 7 {
			t.Errorf("%s: serial %d, %v", text, serial, err)
		}
		if diff := cmp.Diff(sent, got, cmp.AllowUnexported()); diff != "" {
			t.Errorf("%s (-sent +received)\n%s", name, diff)
		}
	}
}

// fill sets all numbers of a message to 3, its texts to "x" and its truths to true, but for its
// Header and its lists.
func fill(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			if f.Type() != reflect.TypeFor[Header]() {
				fill(f)
			}
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Float64:
			f.SetFloat(3)
		case reflect.Int, reflect.Int64:
			f.SetInt(3)
		case reflect.Uint32, reflect.Uint64:
			f.SetUint(3)
		}
	}
}

// A loss that is NaN or infinite comes through JSON as it is.
func TestReportsKeepWhatIsNotFinite(t *testing.T) {
	text, err := json.Marshal(Tag(&ReportRequest{Metrics: api.Metrics{"step": 12,
		"loss": math.NaN(), "best": math.Inf(-1), "worst": math.Inf(1)}}, 0))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"report","metrics":{"best":"-Inf","loss":"NaN","step":12,"worst":"+Inf"}}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	got, _, err := ParseRequest(text)
	if err != nil {
		t.Fatal(err)
	}
	sent := api.Metrics{"step": 12, "loss": math.NaN(), "best": math.Inf(-1), "worst": math.Inf(1)}
	if diff := cmp.Diff(sent, got.(*ReportRequest).Metrics, cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("(-sent +received)\n%s", diff)
	}
}

// Unknown types, unknown fields and trailing bytes are refused, with the serial of the request.
func TestRequestsThatAreRefused(t *testing.T) {
	for packet, want := range map[string]string{
		`{"type":"dance","serial":3}`:              `"dance" names no message`,
		`{"serial":3}`:                             `"" names no message`,
		`{"type":"free","serial":3,"bytes":1}`:     `"bytes"`,
		`{"type":"save","serial":3,"part":{}}`:     `"part"`,
		`{"type":"resume","serial":3,"resume":{}}`: `"resume"`,
		`{"type":"free","serial":3} {}`:            "after top-level value",
	} {
		_, serial, err := ParseRequest([]byte(packet))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", packet, err, want)
		}
		if serial != 3 && !strings.HasSuffix(packet, "{}") {
			t.Errorf("%s: serial %d; the refusal must repeat it", packet, serial)
		}
	}
}

// An agent can name the protocol of a worker whose other fields it does not know.
func TestJoinOfAnotherProtocolIsRead(t *testing.T) {
	m, _, err := ParseRequest([]byte(`{"type":"join","colour":"red","protocol":99,"version":"9"}`))
	join, is := m.(*JoinRequest)
	if err == nil || !is || join.Protocol != 99 || join.Version != "9" {
		t.Errorf("%+v, %v", m, err)
	}
}

// A reply is read into its struct, a refusal is an error, and so is a reply of another type.
func TestReplies(t *testing.T) {
	var segment SegmentReply
	err := ParseReply([]byte(`{"type":"segment","id":4,"bytes":4096,"new":1}`), &segment)
	if err != nil || segment.ID != 4 || segment.Bytes != 4096 {
		t.Errorf("%+v, %v", segment, err)
	}
	var refusal *ErrorReply
	err = ParseReply([]byte(`{"type":"error","error":"no","field":"id"}`), &segment)
	if !errors.As(err, &refusal) || refusal.Problem != "no" || refusal.Field != "id" {
		t.Errorf("%+v, %v", refusal, err)
	}
	if err = ParseReply([]byte(`{"type":"freed"}`), &segment); err == nil ||
		!strings.Contains(err.Error(), `"freed" where "segment" was due`) {
		t.Error(err)
	}
}
