// Package kuadrantv1 declares the messages of Limitador's gRPC service.
package kuadrantv1
