package record

import (
	"bytes"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// Values as they are written, and as docs/formats/record.md shows them.
const (
	ownerText      = `{"shoal":"owner","version":1,"job":"digits","run":"k7","host":"h1","address":"10.0.0.1:7000","generation":3,"since":1795262400,"ended":0}`
	generationText = `{"shoal":"generation","version":1,"job":"digits","run":"k7","record":{"generation":3,"head":"h1","since":1,"members":[{"worker":0,"host":"h1"},{"worker":4,"host":"h2"}],"hosts":[{"name":"h1","slots":2,"draining":false}],"want":2,"min":1,"max":4,"spares":1,"next":5,"done":0}}`
)

// values returns an empty value of each kind, by kind.
func values() map[string]checker {
	return map[string]checker{kindOwner: &Owner{}, kindGeneration: &generationValue{}}
}

// TestDecodeWhatIsDocumented reads the examples of docs/formats/record.md.
func TestDecodeWhatIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/formats/record.md")
	if err != nil {
		t.Fatal(err)
	}
	for kind, text := range map[string]string{kindOwner: ownerText,
		kindGeneration: generationText} {
		v := values()[kind]
		if err := decodeValue(kind, []byte(text), v); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if !bytes.Contains(page, []byte(text)) {
			t.Errorf("docs/formats/record.md does not show %s", text)
		}
	}
}

// TestDecodeRefuses checks that any text but that which shoal writes is refused.
func TestDecodeRefuses(t *testing.T) {
	for _, test := range []struct{ kind, text, from, to, want string }{
		{kindOwner, ownerText, ``, ` `, ""},
		{kindOwner, ownerText, `}`, `} `, "not written as shoal writes it"},
		{kindOwner, ownerText, `}`, `}{}`, "after top-level value"},
		{kindOwner, ownerText, `"version":1`, `"version":2`, "version 2 of the format"},
		{kindOwner, ownerText, `"owner"`, `"generation"`, `says that it is "generation"`},
		{kindOwner, ownerText, `"run":"k7",`, ``, "the run has no name"},
		{kindOwner, ownerText, `"run":"k7"`, `"RUN":"k7"`, "not written as"},
		{kindOwner, ownerText, `"run":"k7"`, `"run":"k7","run":"k7"`, "not written as"},
		{kindOwner, ownerText, `"run":"k7"`, `"run":"k7","more":1`, "not written as"},
		{kindOwner, ownerText, `"k7"`, `"\u006b7"`, "not written as"},
		{kindOwner, ownerText, `"k7"`, `"k\n"`, "control character"},
		{kindOwner, ownerText, `"k7"`, "\"k\xff\"", "not written as"},
		{kindOwner, ownerText, `"k7"`, `"` + strings.Repeat("k", 129) + `"`, "129 bytes"},
		{kindOwner, ownerText, `"ended":0`, `"ended":-1`, "before 1970"},
		{kindOwner, ownerText, `"generation":3`, `"generation":-3`, "cannot unmarshal"},
		{kindOwner, ownerText, `"generation":3`, `"generation":3.0`, "cannot unmarshal"},
		{kindOwner, ownerText, `"generation":3`, `"generation":18446744073709551616`,
			"cannot unmarshal"},
		{kindGeneration, generationText, `"worker":4`, `"worker":0`, "worker 0 twice"},
		{kindGeneration, generationText,
			`"members":[{"worker":0,"host":"h1"},{"worker":4,"host":"h2"}]`, `"members":null`,
			"a list that is not there"},
		{kindGeneration, generationText, `[{"name":"h1"`,
			`[{"name":"h1","slots":0,"draining":true},{"name":"h1"`, "host h1 twice"},
		{kindGeneration, generationText, `"slots":2`, `"slots":-2`, "-2 slots"},
		{kindGeneration, generationText, `"want":2`, `"want":-2`, "below 0"},
		{kindGeneration, generationText, `"head":"h1"`, `"head":""`, "head has no name"},
	} {
		text := strings.Replace(test.text, test.from, test.to, 1)
		if test.to == " " { // nothing to replace: too long
			text, test.want = strings.Repeat(" ", MaxValue+1), "more than"
		}
		err := decodeValue(test.kind, []byte(text), values()[test.kind])
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.300s: got %v, want %q", text, err, test.want)
		}
	}
}

// TestDecodeUnderAnotherKey: an owner under the key of another job is an error that says where it
// belongs.
func TestDecodeUnderAnotherKey(t *testing.T) {
	if _, err := DecodeOwner("owner.digits", []byte(ownerText)); err != nil {
		t.Error(err)
	}
	if _, err := DecodeOwner("owner.other", []byte(ownerText)); err == nil ||
		!strings.Contains(err.Error(), "belongs under owner.digits") {
		t.Error(err)
	}
}

// TestEncodeRefuses: a name that is not UTF-8 is an error, and not written.
func TestEncodeRefuses(t *testing.T) {
	if _, err := (Owner{Job: "digits", Run: "r", Host: "h\xff"}).encode(); err == nil {
		t.Error("a name that is not UTF-8 is written")
	}
}

// drawRecord draws a record of generation g, with any names, numbers and lists that may be written.
func drawRecord(t *rapid.T, g topo.Generation) member.Record {
	name := rapid.StringMatching(`[a-z<>&\x{2028}ü"\\.-]{1,12}`)
	size := rapid.IntRange(0, math.MaxInt32)
	r := member.Record{
		View: topo.View{Generation: g}, Head: name.Draw(t, "head"),
		Since: topo.Generation(rapid.Uint64().Draw(t, "since")),
		Want:  size.Draw(t, "want"), Min: size.Draw(t, "min"), Max: size.Draw(t, "max"),
		Spares: size.Draw(t, "spares"), Next: topo.WorkerID(rapid.Uint64().Draw(t, "next")),
		Done: size.Draw(t, "done"),
	}
	for _, w := range rapid.SliceOfNDistinct(rapid.Uint64(), 0, 5, rapid.ID).Draw(t, "workers") {
		r.View.Members = append(r.View.Members,
			topo.Member{Worker: topo.WorkerID(w), Host: name.Draw(t, "host")})
	}
	for _, h := range rapid.SliceOfNDistinct(name, 0, 5, rapid.ID).Draw(t, "hosts") {
		r.Hosts = append(r.Hosts,
			member.Host{Name: h,
				Slots:    rapid.IntRange(member.NoSlots, math.MaxInt32).Draw(t, "slots"),
				Draining: rapid.Bool().Draw(t, "draining"),
				Kind:     rapid.SampledFrom([]string{"", "a100", "cpu"}).Draw(t, "kind")})
	}
	return r
}

// TestRoundTrip: a random record that is written and read is the same.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := topo.Generation(rapid.Uint64().Draw(t, "generation"))
		want := drawRecord(t, g)
		data, err := encodeGeneration("j", "r", want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeGeneration(GenerationKey("j", "r", g), data)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Fatalf("%s (%v): %s", data, err, diff)
		}
	})
}

// FuzzDecode checks that what can be read is written the same again.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{ownerText, generationText} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for kind, v := range values() {
			if decodeValue(kind, data, v) != nil {
				continue
			}
			if again, err := encode(v); err != nil || !bytes.Equal(again, data) {
				t.Errorf("%s is written as %s (%v)", data, again, err)
			}
		}
	})
}
