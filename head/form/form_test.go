package form_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/head/form"
)

// animal is an interface of which values are written.
type animal interface{ legs() int }

// Dog and TwoBirds are the kinds of it; birds are pointers.
type (
	Dog      struct{ Name string }
	TwoBirds struct {
		Dog
		Near   []animal
		Secret []byte
		Err    error
	}
)

// legs implements animal.
func (Dog) legs() int { return 4 }

// legs implements animal.
func (*TwoBirds) legs() int { return 4 }

// animals is the form of animal, which refuses a dog without a name.
var animals = form.New(func(v any) error {
	if d, is := v.(Dog); is && d.Name == "" {
		return errors.New("a dog without a name")
	}
	return nil
}, form.Kinds{Of: reflect.TypeFor[animal](), List: []any{TwoBirds{}}})

// What is written comes back, without memory and errors, and its keys are the names of kinds and
// fields.
func TestForm(t *testing.T) {
	v := &TwoBirds{Dog: Dog{"Ada"}, Secret: []byte("x"), Err: errors.New("y")}
	b := animals.Encode(v)
	if want := `{"two_birds":{"name":"Ada"}}`; string(b) != want {
		t.Errorf("written as %s, want %s", b, want)
	}
	got, err := animals.Decode(b)
	if err != nil || cmp.Diff(TwoBirds{Dog: Dog{"Ada"}}, got) != "" {
		t.Errorf("it comes back as %+v, %v", got, err)
	}
}

// What cannot be read is an Unread, and what is refused is not.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"two_birds":{"name":"Ada"}} 1`: "after it",
		`{"two_birds":{"color":"red"}}`:  "color",
		`{}`:                             "0 kinds",
		`{"two_birds":{}}`:               "two_birds: a dog without a name",
	} {
		_, err := animals.Decode([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", text, err, want)
		}
		unread := form.Unread{}
		if is := errors.As(err, &unread); is != (want == "after it" || want == "color") {
			t.Errorf("%s: %v is unread: %v", text, err, is)
		}
	}
}
