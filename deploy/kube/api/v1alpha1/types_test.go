package v1alpha1

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
