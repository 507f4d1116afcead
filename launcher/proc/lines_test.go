package proc

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// chunk is what one read gives, at a time in seconds after the beginning of the test.
type chunk struct {
	text string
	at   float64
}

// feedLines feeds chunks to Lines, and returns the lines that come out.
func feedLines(chunks ...chunk) []string {
	got := []string{}
	l := Lines{Emit: func(line []byte) { got = append(got, string(line)) }}
	for _, c := range chunks {
		l.Feed([]byte(c.text), time.Unix(100, 0).Add(time.Duration(c.at*float64(time.Second))))
	}
	l.Close()
	return got
}

// Bytes become lines as a terminal would show them.
func TestLines(t *testing.T) {
	for name, c := range map[string]struct {
		chunks []chunk
		want   []string
	}{
		"nothing":         {nil, []string{}},
		"whole lines":     {[]chunk{{"a\nb\n", 0}}, []string{"a", "b"}},
		"over many reads": {[]chunk{{"a", 0}, {"b\nc", 1}, {"\n", 2}}, []string{"ab", "c"}},
		"empty lines":     {[]chunk{{"\n\na\n", 0}}, []string{"", "", "a"}},
		"no end":          {[]chunk{{"a\nb", 0}}, []string{"a", "b"}},
		"DOS ends":        {[]chunk{{"a\r\nb\r", 0}, {"\n", 0}}, []string{"a", "b"}},
		"progress, fast":  {[]chunk{{"1%\r2%\r3%\r4%\n", 0}}, []string{"1%", "4%"}},
		"progress, slow": {
			[]chunk{{"\r1%", 0}, {"\r2%", 0.5}, {"\r3%", 1.7}, {"\r4%", 1.9}, {"\n", 2}},
			[]string{"1%", "2%", "4%"}},
		"progress, no end": {[]chunk{{"1%\r", 0}, {"2%\r", 0.1}}, []string{"1%", "2%"}},
		"a line after": {[]chunk{{"50%\r100%\ndone\n", 0}},
			[]string{"50%", "100%", "done"}},
		"a return overwrites":  {[]chunk{{"x\r\r\ry\n", 0}}, []string{"x", "y"}},
		"blank after progress": {[]chunk{{"x\r\n\n", 0}}, []string{"x", ""}},
	} {
		if d := cmp.Diff(c.want, feedLines(c.chunks...)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// However a stream is cut into reads, the same lines come out.
func TestLinesDoNotDependOnReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rapid.StringMatching(`[ab\r\n]{0,6}`)).Draw(t, "parts")
		chunks := make([]chunk, len(parts))
		for i, p := range parts {
			chunks[i].text = p
		}
		if d := cmp.Diff(feedLines(chunk{strings.Join(parts, ""), 0}),
			feedLines(chunks...)); d != "" {
			t.Fatal(d)
		}
	})
}

// Text that no carriage return overwrites comes out whole.
func TestLinesLoseNothingButOverwrittenText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[aé€𝄞\n]*`).Draw(t, "text")
		text = strings.Repeat(text, rapid.SampledFrom([]int{1, 7000}).Draw(t, "times"))
		var all bytes.Buffer
		l := Lines{Emit: func(line []byte) {
			if len(line) > maxLine || !utf8.Valid(line) {
				t.Fatalf("a line of %d bytes, valid UTF-8: %v", len(line), utf8.Valid(line))
			}
			all.Write(line)
		}}
		l.Feed([]byte(text), time.Unix(100, 0))
		l.Close()
		if all.String() != strings.ReplaceAll(text, "\n", "") {
			t.Fatal("text was lost or made up")
		}
	})
}

// The last lines are kept, oldest first.
func TestTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOf(rapid.String()).Draw(t, "lines")
		tail := NewTail(3)
		for _, l := range lines {
			tail.Add(l)
		}
		want := append([]string{}, lines[max(0, len(lines)-3):]...)
		if d := cmp.Diff(want, tail.Lines()); d != "" {
			t.Fatal(d)
		}
	})
}
