package jobs

import (
	"maps"
	"strings"
	"testing"
)

// Workers by host are read as they are written, and what is none is refused with what to write.
func TestParseSlots(t *testing.T) {
	for text, want := range map[string]map[string]int{
		"any": {}, "h1=2": {"h1": 2}, "h1=2,h2=0": {"h1": 2, "h2": 0},
		"": nil, "h1": nil, "h1=x": nil, "=2": nil, "h1=-1": nil, "h1=1,h1=2": nil, "h1=1,": nil,
	} {
		got, err := parseSlots(text)
		if want == nil {
			if err == nil || !strings.Contains(err.Error(), "HOST=N") {
				t.Errorf("%q is read as %v: %v", text, got, err)
			}
		} else if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q is read as %v: %v", text, got, err)
		}
	}
}
