// The few functions of TensorFlow's stable C API that ringar uses, declared here so that building
// needs no TensorFlow, and looked up at run time so that one library serves every release.
//
// tests/test_tf_c_api.py compiles these declarations against TensorFlow's own headers.

#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

#ifndef RINGAR_USE_TENSORFLOW_HEADERS
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;
typedef enum TF_Code { TF_OK = 0, TF_INVALID_ARGUMENT = 3 } TF_Code;
typedef enum TF_DataType { TF_INT64 = 9 } TF_DataType;
#endif

TF_Status* TF_NewStatus(void);
void TF_DeleteStatus(TF_Status*);
void TF_SetStatus(TF_Status* s, TF_Code code, const char* msg);
TF_Code TF_GetCode(const TF_Status* s);
const char* TF_Message(const TF_Status* s);

TF_Tensor* TF_NewTensor(TF_DataType, const int64_t* dims, int num_dims, void* data, size_t len,
                        void (*deallocator)(void* data, size_t len, void* arg),
                        void* deallocator_arg);
void TF_DeleteTensor(TF_Tensor*);
int TF_NumDims(const TF_Tensor*);
int64_t TF_Dim(const TF_Tensor* tensor, int dim_index);
size_t TF_TensorByteSize(const TF_Tensor*);
void* TF_TensorData(const TF_Tensor*);

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* op_name);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder* builder, const char* attr_spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder* builder, const char* input_spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder* builder, const char* output_spec);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder* builder, bool is_stateful);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder* builder,
    void (*shape_inference_func)(TF_ShapeInferenceContext* ctx, TF_Status* status));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder* builder, TF_Status* status);

int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext* ctx);
TF_ShapeHandle* TF_NewShapeHandle(void);
void TF_DeleteShapeHandle(TF_ShapeHandle* handle);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext* ctx, int i, TF_ShapeHandle* handle,
                                      TF_Status* status);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext* ctx, int i, TF_ShapeHandle* handle,
                                       TF_Status* status);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext* ctx, TF_Status* status);

TF_KernelBuilder* TF_NewKernelBuilder(const char* op_name, const char* device_name,
                                      void* (*create_func)(TF_OpKernelConstruction*),
                                      void (*compute_func)(void*, TF_OpKernelContext*),
                                      void (*delete_func)(void*));
TF_KernelBuilder* TF_NewAsyncKernelBuilder(
    const char* op_name, const char* device_name, void* (*create_func)(TF_OpKernelConstruction*),
    void (*compute_async_func)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback* done),
    void (*delete_func)(void*));
void TF_RegisterKernelBuilder(const char* kernel_name, TF_KernelBuilder* builder,
                              TF_Status* status);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction* ctx, const char* attr_name,
                                         int32_t* list_size, int32_t* total_size,
                                         TF_Status* status);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction* ctx, const char* attr_name,
                                           char* val, size_t max_length, TF_Status* status);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction* ctx, TF_Status* status);

int64_t TF_StepId(TF_OpKernelContext* ctx);
int TF_NumInputs(TF_OpKernelContext* ctx);
int TF_NumOutputs(TF_OpKernelContext* ctx);
void TF_GetInput(TF_OpKernelContext* ctx, int i, TF_Tensor** tensor, TF_Status* status);
TF_DataType TF_ExpectedOutputDataType(TF_OpKernelContext* ctx, int i);
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext* context, int index, TF_DataType dtype,
                             const int64_t* dims, int num_dims, size_t len, TF_Status* status);
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext* context,
                                           const int* candidate_input_indices,
                                           int num_candidate_input_indices, int output_index,
                                           const int64_t* output_dims, int output_num_dims,
                                           int* forwarded_input, TF_Status* status);
void TF_SetOutput(TF_OpKernelContext* ctx, int i, const TF_Tensor* tensor, TF_Status* status);
void TF_OpKernelContext_Failure(TF_OpKernelContext* ctx, TF_Status* status);
void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback* done);

}  // extern "C"

#define RINGAR_TF_FUNCTIONS(X)                       \
  X(TF_NewStatus)                                    \
  X(TF_DeleteStatus)                                 \
  X(TF_SetStatus)                                    \
  X(TF_GetCode)                                      \
  X(TF_Message)                                      \
  X(TF_NewTensor)                                    \
  X(TF_DeleteTensor)                                 \
  X(TF_NumDims)                                      \
  X(TF_Dim)                                          \
  X(TF_TensorByteSize)                               \
  X(TF_TensorData)                                   \
  X(TF_NewOpDefinitionBuilder)                       \
  X(TF_OpDefinitionBuilderAddAttr)                   \
  X(TF_OpDefinitionBuilderAddInput)                  \
  X(TF_OpDefinitionBuilderAddOutput)                 \
  X(TF_OpDefinitionBuilderSetIsStateful)             \
  X(TF_OpDefinitionBuilderSetShapeInferenceFunction) \
  X(TF_RegisterOpDefinition)                         \
  X(TF_ShapeInferenceContextNumInputs)               \
  X(TF_NewShapeHandle)                               \
  X(TF_DeleteShapeHandle)                            \
  X(TF_ShapeInferenceContextGetInput)                \
  X(TF_ShapeInferenceContextSetOutput)               \
  X(TF_ShapeInferenceContextSetUnknownShape)         \
  X(TF_NewKernelBuilder)                             \
  X(TF_NewAsyncKernelBuilder)                        \
  X(TF_RegisterKernelBuilder)                        \
  X(TF_OpKernelConstruction_GetAttrSize)             \
  X(TF_OpKernelConstruction_GetAttrString)           \
  X(TF_OpKernelConstruction_Failure)                 \
  X(TF_StepId)                                       \
  X(TF_NumInputs)                                    \
  X(TF_NumOutputs)                                   \
  X(TF_GetInput)                                     \
  X(TF_ExpectedOutputDataType)                       \
  X(TF_AllocateOutput)                               \
  X(TF_ForwardInputOrAllocateOutput)                 \
  X(TF_SetOutput)                                    \
  X(TF_OpKernelContext_Failure)                      \
  X(TF_RunAsyncOpKernelDoneCallback)
