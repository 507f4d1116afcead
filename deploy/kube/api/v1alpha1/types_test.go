package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// readSchema returns the schema of ShoalJobs in install.yaml.
func readSchema(t *testing.T) map[string]any {
	text, err := os.ReadFile("../../install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var o unstructured.Unstructured
		if err := documents.Decode(&o.Object); errors.Is(err, io.EOF) {
			t.Fatal("install.yaml has no CustomResourceDefinition")
		} else if err != nil {
			t.Fatal(err)
		}
		if o.GetKind() != "CustomResourceDefinition" {
			continue
		}
		versions, _, err := unstructured.NestedSlice(o.Object, "spec", "versions")
		if err != nil || len(versions) != 1 {
			t.Fatalf("%d versions: %v", len(versions), err)
		}
		s, _, err := unstructured.NestedMap(versions[0].(map[string]any), "schema",
			"openAPIV3Schema", "properties")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// keys returns the names of the fields of a type in JSON, in order.
func keys(of reflect.Type) (names []string) {
	for i := range of.NumField() {
		if !of.Field(i).IsExported() {
			continue
		}
		if of.Field(i).Anonymous {
			names = append(names, keys(of.Field(i).Type)...)
			continue
		}
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestSchema compares the keys of install.yaml with the types: the API server drops what the schema
// does not have.
func TestSchema(t *testing.T) {
	s := readSchema(t)
	for _, part := range []struct {
		path []string
		of   reflect.Type
	}{
		{[]string{"spec"}, reflect.TypeFor[ShoalJobSpec]()},
		{[]string{"status"}, reflect.TypeFor[ShoalJobStatus]()},
		{[]string{"status", "properties", "schedule"}, reflect.TypeFor[ScheduleStatus]()},
		{[]string{"status", "properties", "pods", "items"}, reflect.TypeFor[PodStatus]()},
	} {
		got, _, err := unstructured.NestedMap(s, append(part.path, "properties")...)
		if err != nil {
			t.Fatal(err)
		}
		have, want := slices.Sorted(maps.Keys(got)), keys(part.of)
		if !slices.Equal(have, want) {
			t.Errorf("%v: install.yaml has %v, the type %v", part.path, have, want)
		}
	}
}

// TestWrongTemplate reads jobs whose template has what no template has. The API server takes them,
// and one of them must not keep the operator from reading the others: it is read, says what is
// wrong, and is written as it was.
func TestWrongTemplate(t *testing.T) {
	for template, want := range map[string]string{
		`{"spec":{"containers":[{"name":"a"}]}}`:                                         "",
		`{"spec":{"containers":[{"name":"a","resources":{"limits":{"memory":"8GB"}}}]}}`: "must match",
		`{"spec":{"terminationGracePeriodSeconds":"60","nodeSelector":{"gpu":"a100"},` +
			`"containers":[{"name":"a"}]}}`: "terminationGracePeriodSeconds",
		`{"spec":{"containers":[{"name":"a"}],"nodeSelecter":{"gpu":"a100"}}}`: `unknown field ` +
			`"spec.nodeSelecter"`,
		`{"spec":{"containers":[{"name":"a","Image":"x"}]}}`: `unknown field ` +
			`"spec.containers[0].Image"`,
	} {
		text := `{"apiVersion":"shoal-ml.github.io/v1alpha1","kind":"ShoalJobList","items":[` +
			`{"metadata":{"name":"one"},"spec":{"job":{"command":["x"]},"replicas":2,` +
			`"slotsPerPod":4,"template":` + template + `}},{"metadata":{"name":"two"}}]}`
		scheme := runtime.NewScheme()
		if err := AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		o, err := runtime.Decode(serializer.NewCodecFactory(scheme).UniversalDeserializer(),
			[]byte(text))
		if err != nil {
			t.Errorf("%s: no job is read: %v", template, err)
			continue
		}
		list := o.DeepCopyObject().(*ShoalJobList)
		s := &list.Items[0].Spec
		if got := fmt.Sprint(s.TemplateFault()); want != "" && !strings.Contains(got, want) ||
			want == "" && s.TemplateFault() != nil {
			t.Errorf("%s: %s, want %q", template, got, want)
		}
		if *s.Replicas != 2 || s.SlotsPerPod != 4 || string(s.Job.Raw) != `{"command":["x"]}` ||
			s.Template.Spec.Containers[0].Name != "a" || list.Items[1].Name != "two" {
			t.Errorf("%s: read as %+v", template, list)
		}
		if text, err := json.Marshal(s); err != nil || want != "" &&
			!strings.Contains(string(text), `"template":`+template) ||
			!strings.Contains(string(text), `"slotsPerPod":4`) {
			t.Errorf("%s: written as %s, %v", template, text, err)
		}
	}
}

// TestCopy changes a copy of a job in every part that could be shared.
func TestCopy(t *testing.T) {
	n := int32(2)
	j := &ShoalJob{Spec: ShoalJobSpec{Replicas: &n},
		Status: ShoalJobStatus{Pods: []PodStatus{{Number: 1}},
			Schedule: &ScheduleStatus{Pods: 1}}}
	j.Spec.Job.Raw = []byte("{}")
	c := j.DeepCopy()
	*c.Spec.Replicas, c.Status.Pods[0].Number, c.Spec.Job.Raw[0] = 3, 7, 'x'
	c.Status.Schedule.Pods = 5
	if j.Status.Schedule.Pods != 1 || *j.Spec.Replicas != 2 || j.Status.Pods[0].Number != 1 ||
		string(j.Spec.Job.Raw) != "{}" {
		t.Errorf("the copy shares memory with %+v", j)
	}
}
