// Reads manifests as Kubernetes' own types: YAML on the standard input, JSON on the output, a list with one object each.
// A field that the type does not have, or that is there twice, is an error. Kinds that are not Kubernetes' own pass as
// they are if they are named on the command line.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	objects, err := read(os.Stdin, os.Args[1:])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(objects)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(input io.Reader, foreign []string) ([]json.RawMessage, error) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(input))
	objects := []json.RawMessage{}
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object, err := yaml.ToJSON(document)
		if err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, document)
		}
		// Only comments.
		if bytes.Equal(object, []byte("null")) {
			continue
		}
		var kind metav1.TypeMeta
		if err := json.Unmarshal(object, &kind); err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, document)
		}
		if !slices.Contains(foreign, kind.Kind) {
			if _, _, err := decoder.Decode(document, nil, nil); err != nil {
				return nil, fmt.Errorf("%w in:\n%s", err, document)
			}
		}
		objects = append(objects, object)
	}
}
